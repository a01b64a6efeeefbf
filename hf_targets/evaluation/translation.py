"""Translations of a whole test set, and how good they are: sacreBLEU's BLEU and chrF, with intervals of BLEU."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.positions import position_limit
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import TokenBatchSampler
from hf_targets.data.pair_encoding import pair_lengths
from hf_targets.data.pairs import pair_references
from hf_targets.data.progress import progress
from hf_targets.extras import require

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
        ValueError: If `num_beams` is not 1 or more, several translations of a source are asked for, or as `generate`
            raises.
    """
    if settings.get("return_dict_in_generate") or (settings.get("num_return_sequences") or 1) > 1:
        raise ValueError("each source has one translation; leave out num_return_sequences and return_dict_in_generate")
    if not isinstance(num_beams, int) or num_beams < 1:
        raise ValueError(f"num_beams must be an integer, 1 or more, got {num_beams!r}")
    limit, config = position_limit(model), settings.get("generation_config")
    lengths = [settings.get(name, getattr(config, name, None)) for name in ("max_new_tokens", "max_length")]

    def generate(inputs: BatchEncoding) -> Tensor:
        told: dict[str, Any] = {"do_sample": False, **settings}
        if lengths == [None, None]:
            length = 2 * inputs["input_ids"].shape[1] + 10  # pyright: ignore[reportAttributeAccessIssue]
            told["max_new_tokens"] = length if limit is None else min(length, limit)
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
    device = execution_device(model)
    with without_dropout(model), progress(len(pairs), "translating", unit="pair") as bar:
        for rows in TokenBatchSampler(pair_lengths(pairs), room, shuffle=False, seed=0):
            batch = pairs.select(rows)
            columns = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
            found = generate(tokenizer.pad(columns, return_tensors="pt").to(device))
            texts |= zip(rows, tokenizer.batch_decode(found, skip_special_tokens=True), strict=True)
            bar.update(len(rows))
    return [texts[row].strip() for row in range(len(pairs))]


@dataclass(frozen=True)
class TranslationScores:
    """Scores of a whole test set, each with the signature that says how it was computed; None was not computed."""

    bleu: float | None
    """BLEU of plain text, or of text that was joined from words, in [0, 100]: sacreBLEU cuts words itself."""
    bleu_signature: str | None
    bleu_tokenized: float | None
    """BLEU of text that is cut into words already, in [0, 100]. It is no sacreBLEU score: do not compare the two."""
    bleu_tokenized_signature: str | None
    chrf: float
    """chrF2, in [0, 100]."""
    chrf_signature: str

    @property
    def signature(self) -> str:
        """BLEU's, of plain text and of text that is cut into words."""
        return " and ".join(filter(None, (self.bleu_signature, self.bleu_tokenized_signature)))

    def columns(self) -> dict[str, float]:
        """Return BLEU, of each kind that was computed, and chrF by name."""
        named = {"bleu": self.bleu, "bleu_tokenized": self.bleu_tokenized, "chrf": self.chrf}
        return {name: value for name, value in named.items() if value is not None}


def translation_scores(
    hypotheses: Sequence[str],
    references: Dataset | Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenized: bool = False,
    target_lang: str | None = None,
) -> TranslationScores:
    """Return BLEU and chrF of translations of a whole test set, and log BLEU's signature.

    Args:
        hypotheses: Translations as a reader gets them, without special tokens; one may be empty.
        references: A correct translation of each, or a list of them; or the split of `load_pairs` that has them.
        tokenized: Whether both are cut into words by spaces already, such as the usual files of IWSLT14. The score is
            then `bleu_tokenized`; `bleu` and chrF are of the text that Moses' rules for `target_lang` make of them.
        target_lang: Such as `"zh"` or `"ja"`, whose words sacreBLEU cuts in a way of their own (`"ja"` and `"ko"` need
            more packages). None: as for languages with spaces; of tokenized text no `bleu`, and chrF of its words.
    Raises:
        ValueError: If there are no hypotheses, a text stands in place of a list, the numbers of texts differ, or one
            has no reference.
        ImportError: If sacrebleu is not installed, or sacremoses for the `bleu` of tokenized text.
    Source: Post 2018 (sacreBLEU), Popović 2015 (chrF). COMET needs transformers below 5: score with its own program
        `comet-score`, in an environment of its own.
    """
    lists = _references_of(hypotheses, pair_references(references) if isinstance(references, Dataset) else references)
    streams = [[of_one[n] if n < len(of_one) else None for of_one in lists] for n in range(max(map(len, lists)))]

    def score(by: Any, cut: Callable[[str], str] = str) -> tuple[float, str]:
        joined = [[None if text is None else cut(text) for text in stream] for stream in streams]
        return by.corpus_score([cut(text) for text in hypotheses], joined).score, str(by.get_signature())

    metrics, of_words, bleu = require("sacrebleu.metrics", extra="eval"), (None, None), (None, None)
    joined_by = _joined_by_moses(target_lang) if tokenized and target_lang is not None else str
    if tokenized:
        of_words = score(metrics.BLEU(tokenize="none", force=True))
    if not tokenized or target_lang is not None:
        bleu = score(metrics.BLEU(trg_lang=target_lang or ""), joined_by)
    scores = TranslationScores(*bleu, *of_words, *score(metrics.CHRF(), joined_by))
    logger.info("BLEU is %s", scores.signature)
    return scores


def _joined_by_moses(language: str) -> Callable[[str], str]:
    """Return what makes plain text of words between spaces, with the escapes of Moses' tokenizer undone."""
    detokenize = require("sacremoses", extra="eval").MosesDetokenizer(lang=language).detokenize
    return lambda text: detokenize(text.split())


def _references_of(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> list[Sequence[str]]:
    """Return the references of each hypothesis, one or more."""
    if isinstance(hypotheses, str) or not hypotheses or len(hypotheses) != len(references):
        raise ValueError(
            f"there must be a list of hypotheses, and a reference or a list of them for each, got {len(references)} "
            f"references and {hypotheses!r:.60}"
        )
    lists = [[each] if isinstance(each, str) else each for each in references]
    for number, (text, of_one) in enumerate(zip(hypotheses, lists, strict=True)):
        if not isinstance(text, str) or not of_one:
            raise ValueError(f"number {number} must be a text with a reference, got {text!r:.60} and {of_one!r:.60}")
    return lists
