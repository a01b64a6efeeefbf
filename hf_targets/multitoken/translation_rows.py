"""The rows of a comparison of translation models: plain, bags of words, or heads of some kind."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.multitoken.configuration import BASE_FIELDS, MultiTokenSeq2SeqConfig
from hf_targets.multitoken.seq2seq import MultiTokenForSeq2SeqLM
from hf_targets.multitoken.seq2seq_trainer import BagOfWordsSettings, BagOfWordsTrainer, MultiTokenSeq2SeqTrainer
from hf_targets.training.row_arguments import cosine_weight_of, with_arguments
from hf_targets.training.settings import parse_mapping


@dataclass(frozen=True)
class TranslationRow:
    """A model of a comparison.

    Attributes:
        heads: Fields of `MultiTokenSeq2SeqConfig`; empty: no heads.
        bag: How it is trained on bags of words; None: it is not.
        cosine_weight: Gamma of cosine regularisation; None: that of the arguments.
    """

    heads: dict[str, Any] = field(default_factory=dict)
    bag: BagOfWordsSettings | None = None
    cosine_weight: float | None = None

    def model_of(self, base: PreTrainedModel, **heads: Any) -> PreTrainedModel:
        """Return the row's model on a base model.

        Args:
            heads: Fields of the configuration that the row does not name.
        """
        return MultiTokenForSeq2SeqLM.from_base(base, **{**heads, **self.heads}) if self.heads else base

    def trainer_of(self, tokenizer: PreTrainedTokenizerBase) -> Callable[..., MultiTokenSeq2SeqTrainer]:
        """Return what makes the row's trainer."""
        make = partial(MultiTokenSeq2SeqTrainer, processing_class=tokenizer)
        if self.bag is not None:
            make = partial(BagOfWordsTrainer, processing_class=tokenizer, bag=self.bag)
        return make if self.cosine_weight is None else with_arguments(make, cosine_weight=self.cosine_weight)


def translation_rows(text: str) -> dict[str, TranslationRow]:
    """Return the rows that a JSON object describes: to each name `{}`, `{"bag_of_words": {...}}`, or fields of heads.

    Each row may have a `cosine_weight` of its own.

    Raises:
        ValueError: If it is no such object, a field is unknown, or a row has heads and bags of words.

    >>> rows = translation_rows('{"plain": {}, "bow": {"bag_of_words": {"rise": 0.2}}, "wdr": {"ngram_size": 3}}')
    >>> rows["bow"].bag.rise, rows["wdr"].heads
    (0.2, {'ngram_size': 3})
    """
    rows = {}
    for name, content in parse_mapping(text, "rows").items():
        if not isinstance(content, dict):
            raise ValueError(f"row {name} must be an object, such as {{}} for a plain model, got {content!r}")
        heads = {key: value for key, value in content.items() if key not in ("bag_of_words", "cosine_weight")}
        bag = content.get("bag_of_words")
        if bag is not None and heads:
            raise ValueError(f"row {name} must have bags of words or heads, got both: {content}; make two rows")
        if not isinstance(bag, dict | None):
            raise ValueError(f"bag_of_words of row {name} must be an object, such as {{}}, got {bag!r}")
        _check_fields(name, heads, BASE_FIELDS)
        _check_fields(name, bag or {}, [one.name for one in fields(BagOfWordsSettings)])
        cosine_weight = cosine_weight_of(name, content)
        try:
            MultiTokenSeq2SeqConfig(**heads)
            rows[name] = TranslationRow(heads, None if bag is None else BagOfWordsSettings(**bag), cosine_weight)
        except ValueError as error:
            raise ValueError(f"row {name}: {error}") from error
    if not rows:
        raise ValueError('rows must name a model, such as {"plain": {}}, got none')
    return rows


def _check_fields(name: str, given: dict[str, Any], known: Iterable[str]) -> None:
    if unknown := given.keys() - set(known):
        raise ValueError(f"row {name} has no such field: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
