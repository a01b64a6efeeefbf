"""Translations of a whole test set, in batches of about as many tokens each."""

import logging
from collections.abc import Callable
from typing import Any

from datasets import Dataset
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.positions import position_limit
from hf_targets.data.batches import TokenBatchSampler
from hf_targets.data.pair_encoding import pair_lengths
from hf_targets.data.pairs import pair_references
from hf_targets.data.progress import progress
from hf_targets.evaluation.translation import translation_scores

logger = logging.getLogger(__name__)


def translate(
    model: PreTrainedModel,
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    num_beams: int = 5,
    batch_tokens: int = 4096,
    **settings: Any,
) -> list[str]:
    """Return a model's translations of encoded pairs, in their order, without special tokens.

    A translation has at most twice the tokens of the longest source of its batch and ten more, unless `settings` say
    otherwise. Sources of similar length are translated together.

    Args:
        pairs: As `encode_pairs` makes them; labels only decide what is translated together, and may be left out.
        num_beams: 1 takes the most probable token at each step.
        batch_tokens: Tokens of the sources of a batch, padding included, times the beams.
        settings: More arguments of `generate`, such as `ensemble_weight`, `draft_tokens`, `max_new_tokens`.
    Raises:
        ValueError: If several translations of a source are asked for, or as `generate` raises.
    """
    if settings.get("return_dict_in_generate") or (settings.get("num_return_sequences") or 1) > 1:
        raise ValueError("each source has one translation; leave out num_return_sequences and return_dict_in_generate")
    limit = position_limit(model)

    def generate(inputs: BatchEncoding) -> Tensor:
        length = 2 * inputs["input_ids"].shape[1] + 10  # pyright: ignore[reportAttributeAccessIssue]
        told = {"max_new_tokens": length if limit is None else min(length, limit), "do_sample": False, **settings}
        return model.generate(**inputs, num_beams=num_beams, **told)  # pyright: ignore[reportCallIssue]

    return generated_texts(model, generate, pairs, tokenizer, batch_tokens=batch_tokens // num_beams)


def generated_texts(
    model: PreTrainedModel,
    generate: Callable[[BatchEncoding], Tensor],
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    batch_tokens: int,
) -> list[str]:
    """Return what a model writes for the sources of encoded pairs, in their order, without special tokens.

    Args:
        model: In any mode; its dropout is off meanwhile.
        generate: Gives the texts (batch, time) for the padded `input_ids` and `attention_mask` of a batch.
        pairs: As `encode_pairs` makes them; labels only decide what is translated together, and may be left out.
        batch_tokens: Tokens of the sources of a batch, padding included; more where one source has more.
    """
    longest = max(map(len, pairs["input_ids"]))
    room = max(batch_tokens, longest, int(pair_lengths(pairs).max()))
    texts: dict[int, str] = {}
    with without_dropout(model), progress(len(pairs), "translating", unit="pair") as bar:
        for rows in TokenBatchSampler(pair_lengths(pairs), room, shuffle=False, seed=0):
            batch = pairs.select(rows)
            columns = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
            found = generate(tokenizer.pad(columns, return_tensors="pt").to(model.device))
            texts |= zip(rows, tokenizer.batch_decode(found, skip_special_tokens=True), strict=True)
            bar.update(len(rows))
    return [texts[row].strip() for row in range(len(pairs))]


def score_texts(texts: list[str], pairs: Dataset, *, tokenized: bool = False) -> dict[str, float]:
    """Return BLEU and chrF of texts that a model has written for a split of `load_pairs`, and log BLEU's signature.

    Args:
        texts: One for each pair. If sources have several references, they are compared with all of them.
        tokenized: Whether texts are cut into words already: the name of BLEU is then `bleu_tokenized`.
    """
    scores = translation_scores(texts, pair_references(pairs), tokenized=tokenized)
    logger.info("BLEU is %s", scores.signature)
    return scores.columns()
