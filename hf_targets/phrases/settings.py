"""The settings of a recipe that say which phrases a model is trained on, and against which negatives."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import islice
from typing import Any, ClassVar, TypeVar

import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from hf_targets.backbones.devices import best_device
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.data.tokenization import special_token_ids, tokenizer_fingerprint
from hf_targets.phrases.batches.collator import FalseNegatives, PhraseCollator
from hf_targets.phrases.batches.negatives import CorpusRetrieval, negatives_by_name
from hf_targets.phrases.batches.retokenization import Retokenizer
from hf_targets.phrases.configuration import BASE_FIELDS, DynamicVocabConfig
from hf_targets.phrases.mining import MINERS
from hf_targets.phrases.mining.miner import MiningTask
from hf_targets.training.recipe_settings import field_of
from hf_targets.training.settings import parse_mapping

_TEXTS_AT_ONCE = 1000
_Settings = TypeVar("_Settings", bound="PhraseSettings")


@dataclass
class PhraseSettings:
    """Phrases, negatives and losses; the defaults are the paper's, but for `kl_positions` and generated negatives.

    Those negatives take a model. What the paper leaves open is in recipes/phrases.md.
    """

    settings_title: ClassVar[str] = "Phrases, negatives and losses"

    phrases: str = field(
        default="words",
        metadata={
            "help": 'N-words: "words", N-ids: "tokens", forward maximum matching: "fmm", constituents: "parsing", '
            'chunks: "chunks", or "none".'
        },
    )
    negatives: list[str] = field(
        default_factory=lambda: ["in_batch", "prefix", "self_retrieval"],
        metadata={"help": "Of in_batch, pre_batch, prefix, self_retrieval, corpus_retrieval (fmm) and generation."},
    )
    num_successors: int = field(default=2, metadata={"help": "Tokens behind a phrase that make negatives, at most."})
    negatives_model: str | None = field(
        default=None, metadata={"help": "Generates negatives; any causal model with its tokenizer."}
    )
    min_gap: int = field_of(PhraseCollator, "min_gap", 5)
    phrase_rate: float = field_of(PhraseCollator, "phrase_rate", 0.2)
    max_phrase_tokens: int = field_of(PhraseCollator, "max_tokens", 8)
    false_negatives: FalseNegatives = field_of(PhraseCollator, "false_negatives", "keep")  # noqa: RUF009
    parser_models: str | None = field(default=None, metadata={"help": "Folder of a stanza pipeline, for parsing."})
    fmm_min_count: int = field(default=10, metadata={"help": "How often a phrase must stand in the corpus, for fmm."})
    projection: str = field_of(DynamicVocabConfig, "projection")
    tie_phrase_embeddings: bool = field_of(DynamicVocabConfig, "tie_phrase_embeddings")
    phrase_loss_weight: float = field_of(DynamicVocabConfig, "phrase_loss_weight")
    token_loss_weight: float = field_of(DynamicVocabConfig, "token_loss_weight")
    kl_loss_weight: float = field_of(DynamicVocabConfig, "kl_loss_weight")
    kl_support: str = field_of(DynamicVocabConfig, "kl_support")
    kl_positions: str = field_of(DynamicVocabConfig, "kl_positions")
    kl_direction: str = field_of(DynamicVocabConfig, "kl_direction")
    kl_divisor: str = field_of(DynamicVocabConfig, "kl_divisor")
    kl_detach_teacher: bool = field_of(DynamicVocabConfig, "kl_detach_teacher")

    def __post_init__(self) -> None:
        if self.phrases not in (*MINERS, "none"):
            raise ValueError(f"phrases must be one of {', '.join(MINERS)}, none, got {self.phrases!r}")
        if self.phrases == "parsing" and self.parser_models is None:
            raise ValueError("phrases of parsed sentences take a parser; give parser_models, a folder of stanza's")
        if "corpus_retrieval" in self.negatives and self.phrases != "fmm":
            raise ValueError(
                f'corpus_retrieval looks phrases up in a table of frequent ones, which phrases="fmm" has, got '
                f"phrases={self.phrases!r}"
            )
        DynamicVocabConfig(**self.losses())

    def losses(self) -> dict[str, Any]:
        """Return the fields of `DynamicVocabConfig` that are among these."""
        return {name: getattr(self, name) for name in BASE_FIELDS}


def phrase_rows(rows: str, settings: _Settings) -> dict[str, _Settings]:
    """Return the settings of each row of a table, by its name.

    Args:
        rows: JSON: names, and the fields of `PhraseSettings` in which a row differs from `settings`.
    Raises:
        ValueError: If it is no such mapping, a field is unknown or of another type, or its value is out of range.
    """
    known = [entry.name for entry in fields(PhraseSettings)]
    found = {}
    for name, changes in parse_mapping(rows, "rows").items():
        if not isinstance(changes, dict):
            raise ValueError(
                f"{name} must have the phrase settings in which it differs, as a mapping, got {changes!r}; "
                "{} differs in none"
            )
        for field_name, value in changes.items():
            if field_name not in known:
                raise ValueError(f"{name} has the unknown phrase setting {field_name!r}; known: {', '.join(known)}")
            default = getattr(settings, field_name)
            if (
                default is not None
                and type(value) is not type(default)
                and not (isinstance(default, float) and type(value) is int)
            ):
                raise ValueError(f"{name} must have {field_name} like {default!r}, got {value!r}")
        found[name] = replace(settings, **changes)
    return found


def make_phrase_collator(
    settings: PhraseSettings,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    vocab_size: int,
) -> PhraseCollator:
    """Return the collator that these settings ask for.

    Args:
        texts: The training texts, which forward maximum matching and corpus retrieval look through one by one: no
            phrase is of two texts, and the blocks that a model is trained on play no part.
        vocab_size: Rows of the model's embedding.
    Raises:
        ValueError: If a setting is out of range, or negatives are to be generated without a model.
    """
    longest, retrieval, language_model, retokenizer = settings.max_phrase_tokens, None, None, None
    rows = cache(partial(_token_ids, texts, tokenizer))  # read once, and only by what needs them
    task = MiningTask(
        rows,
        max_tokens=longest,
        min_count=settings.fmm_min_count,
        excluded_ids=special_token_ids(tokenizer),
        parser=settings.parser_models,
    )
    miner = MINERS[settings.phrases].for_task(task)
    if "corpus_retrieval" in settings.negatives:
        retrieval = CorpusRetrieval.from_corpus(rows(), miner.phrases, num_successors=settings.num_successors)
    if "generation" in settings.negatives:
        if settings.negatives_model is None:
            raise ValueError("negatives by generation take a causal language model; give negatives_model")
        loaded: Any = repair_reformer(AutoModelForCausalLM.from_pretrained(settings.negatives_model))
        language_model = loaded.eval().to(best_device())
        theirs = AutoTokenizer.from_pretrained(settings.negatives_model)
        if tokenizer_fingerprint(theirs) != tokenizer_fingerprint(tokenizer):
            retokenizer = Retokenizer(tokenizer, theirs)
    negatives = negatives_by_name(
        settings.negatives,
        num_successors=settings.num_successors,
        corpus_retrieval=retrieval,
        language_model=language_model,
        retokenizer=retokenizer,
    )
    return PhraseCollator(
        tokenizer,
        miner,
        vocab_size=vocab_size,
        negatives=negatives,
        min_gap=settings.min_gap,
        phrase_rate=settings.phrase_rate,
        max_tokens=longest,
        false_negatives=settings.false_negatives,
    )


def _token_ids(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """Return the ids of each text as the blocks have them, in a tenth of the memory of Python's lists."""
    rows = []
    texts = iter(texts)
    while batch := list(islice(texts, _TEXTS_AT_ONCE)):
        encoded = tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)
        rows += [np.array(ids, np.int32) for ids in encoded["input_ids"]]  # pyright: ignore[reportArgumentType]
    return rows
