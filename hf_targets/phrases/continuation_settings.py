"""Settings of a program in which models continue prefixes with the phrases of retrieved documents."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from hf_targets.data.corpora import documents_of
from hf_targets.evaluation.prefix_settings import PrefixSettings
from hf_targets.phrases.mining.ngrams import TokenNgrams, WordNgrams
from hf_targets.phrases.pool import PhrasePool
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.documents import DocumentRetriever
from hf_targets.training.recipe_settings import field_of

PhrasesOf = Callable[[Sequence[int], int], PhraseVocabulary]
"""Gives the phrases of a prefix, from its tokens and the number of rows of the model's embedding."""


@dataclass
class ContinuationSettings(PrefixSettings):
    """Prefixes, the documents whose phrases follow them, and how models write."""

    dataset: str = field_of(PrefixSettings, "dataset", "wikitext-2", note="Its training text has the documents.")
    num_documents: int = field(default=32, metadata={"help": "Documents retrieved for each prefix."})
    document_words: int = field(default=100, metadata={"help": "Words of a document, about."})
    units: Literal["tokens", "words"] = field(
        default="tokens", metadata={"help": '"tokens": all windows; "words": 2 to 5 whole words.'}
    )
    min_tokens: int = field(default=2, metadata={"help": "Shortest phrase."})
    max_tokens: int = field(default=8, metadata={"help": "Longest phrase."})
    do_sample: bool = field(default=False, metadata={"help": "Nucleus sampling in place of greedy decoding."})
    top_p: float = field(default=0.95, metadata={"help": "The nucleus, of tokens and phrases together."})
    never: list[str] = field(
        default_factory=list, metadata={"help": "Words that no model may write, such as WikiText's <unk>."}
    )
    feature_model: str | None = field(
        default=None, metadata={"help": "Model for MAUVE, such as gpt2-large. None: none."}
    )
    dtype: str = field(default="auto", metadata={"help": "Of the models that write, such as bfloat16."})
    batch_size: int = field(default=8, metadata={"help": "Prefixes in a batch; 1 for latencies as in the paper."})

    def phrases_of_documents(self, rows: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> PhrasesOf:
        """Return what gives a prefix the phrases of the documents nearest to it (TF-IDF).

        Args:
            rows: Of the text that is cut into documents.
        """
        retriever = DocumentRetriever.lexical(documents := documents_of(rows, self.document_words))
        whole_words, longest = self.units == "words", self.max_tokens
        miner = WordNgrams(max_tokens=longest) if whole_words else TokenNgrams(self.min_tokens, longest)
        pools: dict[int, PhrasePool] = {}

        def phrases_of(tokens: Sequence[int], vocab_size: int) -> PhraseVocabulary:
            if vocab_size not in pools:
                given: Any = {"num_documents": self.num_documents, "vocab_size": vocab_size}
                pools[vocab_size] = PhrasePool(documents, tokenizer, miner, retriever=retriever, **given)
            return pools[vocab_size].phrases_for([str(tokenizer.decode(list(tokens)))])[0]

        return phrases_of

    def writing(self, tokenizer: PreTrainedTokenizerBase, *, do_sample: bool | None = None) -> dict[str, Any]:
        """Return what `continue_prefixes` passes to `generate`; `do_sample` in place of the setting, if it is given."""
        banned: Any = tokenizer(
            [form for word in self.never for form in (word, f" {word}")] or [""], add_special_tokens=False
        )["input_ids"]
        do_sample = self.do_sample if do_sample is None else do_sample
        nucleus = {"top_p": self.top_p, "top_k": 0} if do_sample else {}
        return {"do_sample": do_sample, "bad_words_ids": banned if self.never else None, **nucleus}
