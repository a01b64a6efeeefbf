"""Texts that several models write after the same prefixes, with the phrases of retrieved documents where they can."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from accelerate import PartialState
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_targets import (
    DocumentRetriever,
    DynamicVocabForCausalLM,
    PhrasePool,
    PhraseVocabulary,
    TokenNgrams,
    WordNgrams,
    continue_prefixes,
    documents_of,
    measure_continuations,
    take_prefixes,
)
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.baselines.multiword_tokens import multiword_tokenizer
from hf_targets.data.prompts import encode_prompt
from hf_targets.data.words import words_and_marks
from hf_targets.evaluation.continuations import Continuations, Expand, Prefix, Prepare, WordsOf, repetition_units
from hf_targets.evaluation.mauve import LEAST_TEXTS
from hf_targets.evaluation.repetition import ORDERS, Text, repeated_ngrams
from hf_targets.extras import require
from hf_targets.retrieval.encoders import load_encoder
from lab.tables import differences_table, markdown_table, results_table
from lab.text import TextSettings

PhrasesOf = Callable[[Sequence[int], int], PhraseVocabulary]
"""Gives the phrases of a prefix, from its tokens and the number of rows of the model's embedding."""


@dataclass
class ContinuationSettings(TextSettings):
    """Prefixes, the documents whose phrases follow them, and how models write."""

    split: Literal["test", "validation"] = field(default="test", metadata={"help": "Text that has the prefixes."})
    num_prefixes: int = field(default=100, metadata={"help": "How many, spread evenly over the text."})
    prefix_tokens: int = field(default=32, metadata={"help": "Tokens of a prefix."})
    new_tokens: int = field(default=128, metadata={"help": "Tokens to generate."})
    num_documents: int = field(default=32, metadata={"help": "Documents of the training text for each prefix."})
    document_words: int = field(default=100, metadata={"help": "Words of a document, about."})
    encoder: list[str] = field(
        default_factory=list, metadata={"help": "A sentence encoder, or DPR's two, context first. Empty: TF-IDF."}
    )
    units: Literal["tokens", "words"] = field(default="tokens", metadata={"help": "All windows, or 2 to 5 words."})
    min_tokens: int = field(default=2, metadata={"help": "Shortest phrase."})
    max_tokens: int = field(default=8, metadata={"help": "Longest phrase."})
    do_sample: bool = field(default=False, metadata={"help": "Nucleus sampling in place of greedy decoding."})
    top_p: float = field(default=0.95, metadata={"help": "The nucleus, of tokens and phrases together."})
    phrase_bias: float | None = field(
        default=None, metadata={"help": "Added to the logit of every phrase: more, or fewer. None: the model's, or 0."}
    )
    phrase_length_correction: float | None = field(
        default=None, metadata={"help": "Added for each token of a phrase after its first. None: the model's, or 0."}
    )
    instruction: str | None = field(
        default=None,
        metadata={
            "help": "A message whose answer each prefix begins (chat template). None: the prefix alone, as in text."
        },
    )
    never: list[str] = field(default_factory=list, metadata={"help": "Words that no model may write, such as <unk>."})
    repetition_of: Literal["words", "spacy", "tokens"] = field(
        default="words", metadata={"help": "What repetition counts: words and marks, spaCy's as published, tokens."}
    )
    feature_model: str | None = field(default=None, metadata={"help": "For MAUVE, such as gpt2-large. None: none."})
    dtype: str = field(default="auto", metadata={"help": "Of the models that write or score, such as bfloat16."})
    batch_size: int = field(default=8, metadata={"help": "Prefixes in a batch; 1 for latencies as in the paper."})

    def __post_init__(self) -> None:
        if self.repetition_of == "spacy":
            require("spacy", extra="eval")  # which is needed at the end, as is MAUVE
        if self.feature_model is not None:
            require("mauve", extra="eval")
            if self.num_prefixes < LEAST_TEXTS:
                raise ValueError(f"MAUVE needs {LEAST_TEXTS} prefixes or more, got num_prefixes={self.num_prefixes}")

    def prefixes(self, texts: Mapping, tokenizer: PreTrainedTokenizerBase) -> list[Prefix]:
        """Return the prefixes of the split's text, as `take_prefixes` takes them."""
        rows: Any = tokenizer(list(texts[self.split]["text"]), add_special_tokens=False, verbose=False)["input_ids"]
        return take_prefixes(rows, self.num_prefixes, prefix_tokens=self.prefix_tokens, new_tokens=self.new_tokens)

    def documents(self, rows: Sequence[str]) -> tuple[dict[str, str], DocumentRetriever]:
        """Return documents cut from `rows`, and what finds them."""
        return (found := documents_of(rows, self.document_words)), document_retriever(found, self.encoder)

    def phrases_of_documents(self, rows: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> PhrasesOf:
        """Return what gives a prefix the phrases of the nearest documents, which are cut from `rows`."""
        return self.phrases_of(*self.documents(rows), tokenizer)

    def phrases_of(self, documents: Any, retriever: Any, tokenizer: PreTrainedTokenizerBase) -> PhrasesOf:
        """Return what gives a prefix the phrases of the nearest documents, which `documents` returns."""
        longest = self.max_tokens
        miner = WordNgrams(max_tokens=longest) if self.units == "words" else TokenNgrams(self.min_tokens, longest)
        pools: dict[int, PhrasePool] = {}

        def phrases_of(tokens: Sequence[int], vocab_size: int) -> PhraseVocabulary:
            if vocab_size not in pools:
                given: Any = {"num_documents": self.num_documents, "vocab_size": vocab_size}
                pools[vocab_size] = PhrasePool(documents, tokenizer, miner, retriever=retriever, **given)
            return pools[vocab_size].phrases_for([str(tokenizer.decode(list(tokens)))])[0]

        return phrases_of

    def words(self) -> WordsOf | None:
        """Return what cuts a text into the units of `repetition_of`, None for tokens."""
        if self.repetition_of == "spacy":
            nlp = require("spacy", extra="eval").blank("en")
            return lambda text: [token.text for token in nlp(text)]
        return words_and_marks if self.repetition_of == "words" else None

    def writing(self, tokenizer: PreTrainedTokenizerBase, *, do_sample: bool | None = None) -> dict[str, Any]:
        """Return arguments of `continue_prefixes`; `do_sample` in place of the setting, if it is given."""
        words = [form for word in self.never for form in (word, f" {word}")]
        banned: Any = tokenizer(words, add_special_tokens=False)["input_ids"] if words else None
        do_sample = self.do_sample if do_sample is None else do_sample
        given: dict[str, Any] = {"top_p": self.top_p, "top_k": 0} if do_sample else {}
        if self.instruction is not None:
            message = encode_prompt(tokenizer, [{"role": "user", "content": self.instruction}])["input_ids"]
            given["before"] = message[0].tolist()  # pyright: ignore
        return {"do_sample": do_sample, "bad_words_ids": banned, **given}


@dataclass
class ComparisonSettings(ContinuationSettings):
    """What is measured of texts that several models write."""

    pairwise_judge: str | None = field(
        default=None, metadata={"help": "Model that compares texts with the first model's, in both orders. None: none."}
    )
    multiword_tokens: int | None = field(
        default=None, metadata={"help": "Also count the tokens of a tokenizer with so many pairs of words. None: not."}
    )

    def multiword(self, tokenizer: PreTrainedTokenizerBase, rows: Sequence[str]) -> PreTrainedTokenizerBase | None:
        """Return a tokenizer that has the most frequent pairs of words of `rows`, None without them."""
        size = self.multiword_tokens
        return None if size is None else multiword_tokenizer(tokenizer, rows, size)[0]


def document_retriever(documents: Mapping[str, str], encoder: Sequence[str]) -> DocumentRetriever:
    """Return what finds documents by the vectors of an encoder, by DPR's two, or by words if there is none."""
    return DocumentRetriever(documents, load_encoder(*encoder)) if encoder else DocumentRetriever.lexical(documents)


def with_phrases(model: DynamicVocabForCausalLM, phrases_of: PhrasesOf, settings: ContinuationSettings) -> Prepare:
    """Return a function for the argument `prepare` of `continue_prefixes`, which gives each prefix its phrases."""
    prior = {name: getattr(settings, name) for name in ("phrase_bias", "phrase_length_correction")}
    vocab_size = model.get_output_embeddings().weight.shape[0]

    def prepare(prefixes: Sequence[Prefix], new_tokens: int) -> tuple[dict[str, Any], Sequence[Expand]]:
        vocabularies = [phrases_of(prefix.tokens, vocab_size) for prefix in prefixes]
        arguments = {"phrases": model.phrase_table(vocabularies), "max_new_static_tokens": new_tokens, **prior}
        return arguments, [lambda id_, phrases=vocabulary: phrases.expand([id_]) for vocabulary in vocabularies]

    return prepare


class TextComparison:
    """The texts and figures of models that continue the same prefixes, one model after the other.

    By the name of a model, `figures` are the columns of each seed, and `texts` its texts.
    """

    def __init__(
        self,
        settings: ContinuationSettings,
        prefixes: Sequence[Prefix],
        tokenizer: PreTrainedTokenizerBase,
        phrases_of: PhrasesOf,
        *,
        do_sample: bool | None = None,
        multiword: PreTrainedTokenizerBase | None = None,
    ) -> None:
        self.figures: dict[str, list[dict[str, float]]] = defaultdict(list)
        self.texts: dict[str, list[list[str]]] = defaultdict(list)
        self._continued: dict[str, list[Continuations]] = defaultdict(list)
        self._units: dict[str, list[Sequence[Text]]] = defaultdict(list)
        self._settings, self._prefixes, self._tokenizer = settings, prefixes, tokenizer
        self._phrases_of = phrases_of
        self._writing = settings.writing(tokenizer, do_sample=do_sample)
        self._measured: dict[str, Any] = {"words": settings.words()}
        self._measured["other_tokenizers"] = {} if multiword is None else {"multiword": multiword}
        if (name := settings.feature_model) is not None:
            tokens = AutoTokenizer.from_pretrained(name)
            self._measured |= {"feature_model": load_model(name, dtype=settings.dtype), "feature_tokenizer": tokens}

    def add(
        self,
        name: str,
        model: PreTrainedModel,
        judge: str,
        *,
        seed: int,
        prepare: Prepare | None = None,
        **writing: Any,
    ) -> dict[str, float]:
        """Let a model continue the prefixes, with phrases if it can, and return its columns (`measure_continuations`).

        The seeds of a row, by its name, are added one by one; the judge is a model that scores the texts. Other
        arguments are those of `continue_prefixes`.
        """
        judges = AutoTokenizer.from_pretrained(judge)
        judge_tokenizer = None if judges.get_vocab() == self._tokenizer.get_vocab() else judges
        set_seed(seed)
        if prepare is None and isinstance(model, DynamicVocabForCausalLM):
            prepare = with_phrases(model, self._phrases_of, self._settings)
        given: Any = {"new_tokens": self._settings.new_tokens, "batch_size": self._settings.batch_size}
        given |= {**self._writing, **writing}
        continued = continue_prefixes(model, self._prefixes, prepare=prepare, **given)
        loaded = {"judge": load_model(judge, dtype=self._settings.dtype), "judge_tokenizer": judge_tokenizer}
        columns = measure_continuations(continued, self._prefixes, self._tokenizer, **loaded, **self._measured)
        self.figures[name].append(columns)
        self.texts[name].append([str(self._tokenizer.decode(tokens)) for tokens in continued.tokens])
        self._continued[name].append(continued)
        units = repetition_units(continued, self._prefixes, self._tokenizer, self._measured["words"])
        self._units[name].append(units)
        return columns

    def tables(self) -> str:
        """Return the means over seeds, the differences from the first model, and intervals over prefixes."""
        parts = [results_table(self.figures)]
        if differences := differences_table(self.figures):
            parts += ["Against the first:", differences]
        return "\n\n".join([*parts, "Intervals of 95%, over prefixes:", format_intervals(self._continued, self._units)])


_Means = np.ndarray
"""Of a set of texts, (..., 5): rep-2 to rep-4, steps, phrases."""
_COLUMNS: dict[str, Callable[[_Means], np.ndarray]] = {
    "diversity, %": lambda means: 100 * (1 - means[..., :3] / 100).prod(axis=-1),
    "steps": lambda means: means[..., 3],
    "phrase_share, %": lambda means: 100 * means[..., 4] / means[..., 3],
}


def format_intervals(rows: Mapping[str, Sequence[Continuations]], units: Mapping[str, Sequence[Sequence[Text]]]) -> str:
    """Return intervals of each model's columns, and of their differences from the first model's, as a Markdown table.

    Prefixes are resampled, each with the texts of all models and seeds, so that a hard prefix is hard for all. A
    difference whose interval contains 0 is printed as none. Latencies have none, as the rows of a batch share its time.

    Args:
        rows: By model, the continuations of each seed, all after the same prefixes in the same order.
        units: Likewise, of each text what repetition counts, `repetition_units`.
    """
    of_texts = {model: np.mean(list(map(_values, seeds, units[model])), axis=0) for model, seeds in rows.items()}
    first = next(iter(of_texts.values()))
    if len(first) < 2:
        return "One prefix has no interval."
    drawn = np.random.default_rng(0).integers(0, len(first), (2000, len(first)))

    def interval(column: Callable[[_Means], np.ndarray], values: np.ndarray, reference: np.ndarray | None) -> str:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Mean of empty slice", RuntimeWarning)  # told below
            found, *base = (column(np.nanmean(of[drawn], axis=1)) for of in (values, reference) if of is not None)
        low, high = np.percentile(found - base[0] if base else found, [2.5, 97.5])
        if np.isnan(low):  # in some samples no text is long enough
            return "too few texts"
        if reference is None:
            return f"{low:.2f} to {high:.2f}"
        told = f"{low:+.2f} to {high:+.2f}"
        return f"none ({told})" if low <= 0 <= high else told

    compared: list[tuple] = [(model, values, None) for model, values in of_texts.items()]
    compared += [(f"{model} - first", values, first) for model, values, _ in compared[1:]]
    lines = [[name, *(interval(column, *of) for column in _COLUMNS.values())] for name, *of in compared]
    return markdown_table(["model", *_COLUMNS], lines)


def _values(continued: Continuations, units: Sequence[Text]) -> np.ndarray:
    """Return the values of each text, (texts, 5), whose means are `_Means`; NaN for a text too short for an n-gram."""

    def repeated(text: Text) -> list[float]:
        return [repeated_ngrams([text], order) if len(text) >= order else np.nan for order in ORDERS]

    columns = zip(map(repeated, units), continued.num_steps, continued.num_phrases, strict=True)
    return np.array([[*reps, steps, phrases] for reps, steps, phrases in columns])


def load_model(name: str, **loading: Any) -> PreTrainedModel:
    """Return a causal model in evaluation mode, on the accelerator if there is one."""
    model: Any = repair_reformer(AutoModelForCausalLM.from_pretrained(name, **loading))
    return model.eval().to(PartialState().device)
