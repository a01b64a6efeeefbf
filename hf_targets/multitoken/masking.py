"""Masking tokens: other ones in each epoch of a training, and the same ones in each evaluation."""

from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    PreTrainedTokenizerBase,
)
from xxhash import xxh64_intdigest

from hf_targets.maths.losses import IGNORED


class MaskingCollator:
    """Pads rows and masks their tokens: of those chosen, 80% become the mask token, 10% a random one, and 10% stay.

    Which of a row are chosen depends on the row, the seed and the epoch alone: not on other rows or processes, and not
    on where a training was resumed. Rows that have `labels` are masked already, and are only padded.

    `MultiTokenMaskedTrainer` tells it the epoch. In Transformers' own Trainer, add `EpochCallback(collator)` of
    `hf_targets.training.token_batches`; without it each epoch masks the same tokens.

    Args:
        tokenizer: With a mask token.
        share: Of the tokens that are chosen, in (0, 1].
        exact: Whether round(share length) tokens of a row are chosen, special ones too, and of these 80% and 10%, each
            rounded, are replaced, as the published program of CrammedBERT does, instead of each with its probability.
    Raises:
        ValueError: If the tokenizer has no mask token, or the share is out of range.
    Source: Devlin et al. 2018, section 3.1; `transformers.DataCollatorForLanguageModeling`.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, share: float = 0.15, *, seed: int = 0, exact: bool = False
    ) -> None:
        check_share(share)
        if tokenizer.mask_token_id is None:
            raise ValueError(
                "the tokenizer has no mask token; add one with add_special_tokens({'mask_token': '[MASK]'}), and "
                "resize the model's embeddings"
            )
        self.tokenizer, self.share, self.seed, self.exact = tokenizer, share, seed, exact
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()  # workers of a data loader see it change
        self._mask = DataCollatorForLanguageModeling(tokenizer, mlm_probability=share, seed=seed)
        self._pad = DataCollatorForTokenClassification(tokenizer)

    def set_epoch(self, epoch: int) -> None:
        """Choose the tokens of an epoch, from 0 on."""
        self._epoch.fill_(epoch)

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Return a batch with `input_ids`, `attention_mask` and `labels`, which are -100 at tokens not chosen."""
        return self._pad([dict(row) if "labels" in row else self._masked(dict(row)) for row in rows])

    def _masked(self, row: dict[str, Any]) -> dict[str, Any]:
        ids = torch.as_tensor(row["input_ids"], dtype=torch.long)
        digest = xxh64_intdigest(ids.numpy().tobytes(), seed=(self.seed + 2**32 * int(self._epoch)) % 2**64)
        self._mask.generator = generator = torch.Generator().manual_seed(digest >> 1)
        if self.exact:
            real = torch.as_tensor(row.get("attention_mask", torch.ones_like(ids))).nonzero()[:, 0]
            hidden, labels = self._with_exact_counts(ids, real, generator)
        else:
            hidden, labels = (part[0] for part in self._mask.torch_mask_tokens(ids[None].clone()))
        return {**row, "input_ids": hidden.tolist(), "labels": labels.tolist()}

    def _with_exact_counts(self, ids: Tensor, real: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        count = round(self.share * len(real))
        chosen = real[torch.randperm(len(real), generator=generator)[:count]]
        masks, words = chosen[: round(0.8 * count)], chosen[round(0.8 * count) : round(0.9 * count)]
        hidden, labels = ids.clone(), torch.full_like(ids, IGNORED)
        labels[chosen] = ids[chosen]
        hidden[masks] = self.tokenizer.mask_token_id  # pyright: ignore[reportArgumentType]
        hidden[words] = torch.randint(len(self.tokenizer), words.shape, generator=generator)
        return hidden, labels


def check_share(share: float) -> None:
    """Raise a ValueError if a share of tokens to mask is not in (0, 1]."""
    if not 0 < share <= 1:
        raise ValueError(f"mask_share must be in (0, 1], got {share}")


def check_masked(rows: Dataset, name: str) -> None:
    """Raise a ValueError if each label is the id that stands at its position, as in data for a causal model."""
    has_labels = False
    for ids, labels in zip(rows["input_ids"], rows["labels"], strict=True):
        has_labels |= any(label != IGNORED for label in labels)
        if any(label not in (IGNORED, id_) for id_, label in zip(ids, labels, strict=True)):
            return
    if has_labels:
        raise ValueError(
            f"no token of the {name} data is masked: all labels stand in input_ids too; remove the column labels"
        )
