"""Two perplexities that must not be confused: of held-out text, and of text that a model has generated.

`perplexity_of_blocks` measures a model on a test text. `perplexity_of_generated_texts` is the column "PPL" of papers on
generation: the perplexity of text from one model under another model, the judge. It is lowest for text that repeats
itself, so the result also contains measures of variety.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.inputs import have_holes
from hf_targets.backbones.positions import longest_text
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import by_length, padded_rows
from hf_targets.data.progress import progress
from hf_targets.data.token_rows import NUM_WORDS, sum_of_words
from hf_targets.data.tokenization import check_fast
from hf_targets.maths.losses import IGNORED, perplexity


@dataclass(frozen=True)
class BlockPerplexity:
    """The perplexity of a test text under a causal language model.

    Attributes:
        nll: Summed negative log-likelihood of all targets, in nats.
        num_tokens: Number of targets.
        num_words: Number of words, as `data.blocks.pack_blocks` counts them; None if a block has no `num_words`.
    """

    nll: float
    num_tokens: int
    num_words: int | None

    @property
    def per_token(self) -> float:
        """Return exp(nll / tokens). Use it to compare models with the same tokenizer."""
        return perplexity(self.nll / self.num_tokens)

    @property
    def per_word(self) -> float | None:
        """Return exp(nll / words), comparable between tokenizers; None if words are not counted."""
        return perplexity(self.nll / self.num_words) if self.num_words else None


@dataclass(frozen=True)
class GeneratedTextPerplexity:
    """The perplexity of generated texts under a judge, with their variety: repetitive texts have a low perplexity.

    Attributes:
        nll: Summed negative log-likelihood of the scored tokens, in nats.
        num_tokens: Number of scored tokens: generated tokens, but not the first token of a text.
        per_text: The perplexity of each text.
        entropy: Entropy of the frequencies of generated tokens in all texts together, in nats; low for few tokens.
        mean_entropy_of_texts: Mean over texts of the entropy of the text's generated tokens, in nats. Papers on
            diffusion models report it together with such a perplexity. It is at most the logarithm of the text's
            length, so compare only texts of one length.
    """

    nll: float
    num_tokens: int
    per_text: tuple[float, ...]
    entropy: float
    mean_entropy_of_texts: float

    @property
    def perplexity(self) -> float:
        """Return exp(nll / tokens) over the tokens of all texts."""
        return perplexity(self.nll / self.num_tokens)


def perplexity_of_blocks(
    model: PreTrainedModel, blocks: Iterable[Mapping[str, Any]], *, batch_size: int = 8
) -> BlockPerplexity:
    """Return the perplexity of a causal language model on a test text, which must not be in its training data.

    Each label is a target once, except -100 and the first label of a block. The model predicts it from the tokens
    before it in the block. Padding at both ends changes nothing.

    Args:
        model: Any causal language model; its dropout is off meanwhile.
        blocks: Rows with `input_ids`, and optionally `attention_mask`, `labels` and `num_words`. The blocks of
            `data.blocks.pack_blocks` make every token of a text, except the first, a target exactly once.
        batch_size: Blocks in one forward pass.
    Raises:
        ValueError: If there is no target, a block has holes in its mask, columns of different lengths, or more tokens
            than the model has positions, or if some blocks have `num_words` and others lack it.
    """
    rows, words = [], []
    for index, block in enumerate(blocks):
        rows.append(row_of_block(block, index))
        words.append(block.get(NUM_WORDS))
    num_words = sum_of_words(words)
    nlls = torch.cat([torch.zeros(0), *_negative_log_likelihoods(model, rows, batch_size)])
    if not len(nlls):
        raise ValueError(f"a perplexity needs a target, and {len(rows)} blocks have none; give longer blocks")
    return BlockPerplexity(nlls.sum().item(), len(nlls), num_words)


def perplexity_of_generated_texts(
    model: PreTrainedModel,
    texts: Sequence[Sequence[int]] | Sequence[str],
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    prefix_lengths: int | Sequence[int] = 0,
    batch_size: int = 8,
) -> GeneratedTextPerplexity:
    """Return the perplexity of generated texts under a judge. A low value may mean repetition, not a good generator.

    Each token after the prefix is a target once, predicted from all tokens before it. The first token of a text is
    never a target.

    Args:
        model: The judge: any causal language model. Use the same for all texts that you compare.
        texts: Prefix and continuation together, as the judge's token ids without padding, or as strings.
        tokenizer: The judge's tokenizer, required for strings. Special tokens that it adds count as tokens.
        prefix_lengths: Length of the prefix in tokens of the judge, one for all texts or a list; `num_prefix_tokens`
            counts them.
        batch_size: Texts in one forward pass.
    Raises:
        ValueError: If there is no text, a text has no token after its prefix or more tokens than the model has
            positions, or strings have no tokenizer.
    Source: Lan et al. 2023, whose judge is GPT-2 large.  Departs: their program also scores prefixes. It joins all
        texts with two line ends and cuts this into blocks of 1024 tokens, so that a text is read after its neighbours.
        Here each text is read alone, and only generated tokens count.
    """
    if len(texts) and tokenizer is not None and all(isinstance(text, str) for text in texts):
        texts = tokenizer(cast(list[str], list(texts)), verbose=False)["input_ids"]  # pyright: ignore
    if not len(texts) or any(isinstance(text, str) for text in texts):
        raise ValueError("texts must be a list of lists of token ids, or of strings with tokenizer=, and not empty")
    rows_of_ids = [list(map(int, text)) for text in texts]
    lengths = [prefix_lengths] * len(texts) if isinstance(prefix_lengths, int) else list(prefix_lengths)
    rows = []
    for index, (ids, length) in enumerate(zip(rows_of_ids, lengths, strict=True)):
        if not 0 <= length < len(ids) or len(ids) < 2:
            raise ValueError(
                f"a text must have a token after its prefix, and two tokens in all, text {index} has {len(ids)} tokens "
                f"and a prefix of {length}; leave out texts without a continuation"
            )
        rows.append((torch.tensor(ids), torch.tensor([IGNORED] * length + ids[length:])))
    nlls = _negative_log_likelihoods(model, rows, batch_size)
    generated = [ids[length:] for ids, length in zip(rows_of_ids, lengths, strict=True)]
    return GeneratedTextPerplexity(
        nll=sum(row.sum().item() for row in nlls),
        num_tokens=sum(map(len, nlls)),
        per_text=tuple(perplexity(row.mean().item()) for row in nlls),
        entropy=_entropy([id_ for ids in generated for id_ in ids]),
        mean_entropy_of_texts=fmean(map(_entropy, generated)),
    )


def num_prefix_tokens(texts: Sequence[str], prefixes: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return how many tokens of each text end within its prefix; a token across the prefix's end counts as generated.

    Args:
        texts: Prefix and continuation together.
        prefixes: The prefix of each text.
        tokenizer: A fast tokenizer; it adds its special tokens, as in `perplexity_of_generated_texts`.
    Raises:
        ValueError: If a text does not begin with its prefix, or the tokenizer is a slow one.
    """
    check_fast(tokenizer)
    lengths = []
    for text, prefix in zip(texts, prefixes, strict=True):
        if not text.startswith(prefix):
            raise ValueError(f"a text must begin with its prefix {prefix[:40]!r}, got {text[:40]!r}")
        offsets = tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
        lengths.append(next((at for at, (_, end) in enumerate(offsets) if end > len(prefix)), len(offsets)))
    return lengths


def row_of_block(block: Mapping[str, Any], index: int) -> tuple[Tensor, Tensor]:
    """Return the tokens and labels of a block without its padding; `index` is its number, for errors."""
    if not isinstance(block, Mapping) or "input_ids" not in block:
        raise ValueError(f"block {index} must have input_ids; make blocks of a text with pack_blocks")
    ids = torch.as_tensor(block["input_ids"])
    mask, targets = block.get("attention_mask"), block.get("labels")  # joined data sets have None where one lacks them
    keep = torch.ones_like(ids).bool() if mask is None else torch.as_tensor(mask).bool()
    labels = ids if targets is None else torch.as_tensor(targets)
    if not ids.shape == keep.shape == labels.shape or ids.dim() != 1 or have_holes(keep[None]).any():
        raise ValueError(
            f"input_ids, attention_mask and labels of block {index} must be lists of equal length, the mask 0 only at "
            f"the ends, got shapes {[list(column.shape) for column in (ids, keep, labels)]}; remove other positions"
        )
    return ids[keep], labels[keep]


def check_rows(model: PreTrainedModel, rows: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raise a ValueError if a row, ids (time,) and labels or what else there is, is longer than the model has
    positions, or has ids that the model has not."""
    longest, positions = max((len(ids) for ids, _ in rows), default=0), longest_text(model)
    if positions is not None and longest > positions:
        raise ValueError(f"a row has {longest} tokens, and the model {positions} positions; cut it into blocks")
    most = max((int(part.max()) for row in rows for part in row if isinstance(part, Tensor) and len(part)), default=0)
    if most >= (vocab_size := model.config.get_text_config().vocab_size):
        raise ValueError(f"ids must be in [0, {vocab_size - 1}], got {most}; use the model's own tokenizer")


@torch.no_grad()
def _negative_log_likelihoods(
    model: PreTrainedModel, rows: Sequence[tuple[Tensor, Tensor]], batch_size: int
) -> list[Tensor]:
    """Return the negative log-likelihoods of the targets of each row, in float64; the longest rows run first."""
    check_rows(model, rows)
    scored = [index for index, (ids, _) in enumerate(rows) if len(ids) > 1]
    found = {}
    with without_dropout(model), progress(len(scored), "measuring perplexity", unit="row") as bar:
        for numbers in by_length([len(rows[index][0]) for index in scored], batch_size):
            indices = [scored[number] for number in numbers]
            ids, mask = padded_rows([rows[index][0] for index in indices])
            place = execution_device(model)
            logits = model(input_ids=ids.to(place), attention_mask=mask.to(place), return_dict=True).logits
            for index, row in zip(indices, logits, strict=True):
                targets = rows[index][1][1:].to(row.device)
                losses = F.cross_entropy(row[: len(targets)].float(), targets, ignore_index=IGNORED, reduction="none")
                found[index] = losses[targets != IGNORED].cpu().double()
            bar.update(len(indices))
    return [found.get(index, torch.zeros(0, dtype=torch.float64)) for index in range(len(rows))]


def _entropy(ids: Sequence[int]) -> float:
    counts = torch.tensor(ids).unique(return_counts=True)[1]
    return torch.special.entr(counts.double() / counts.sum()).sum().item()
