"""The phrases of the documents that are nearest to a prompt, ready for each request of a service."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from hf_targets.data.words import check_texts
from hf_targets.phrases.mining.miner import MinedText, PhraseMiner
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.collection import DocumentCollection
from hf_targets.retrieval.documents import DocumentRetriever

_MAX_KEPT = 2**16  # documents whose phrases are kept


class Retriever(Protocol):
    """Whatever finds the documents nearest to prompts, such as a `DocumentRetriever` or a `DocumentCollection`."""

    def retrieve(self, queries: list[str], k: int) -> list[list[tuple[str, float]]]:
        """Return for each query the ids and scores of its `k` nearest documents, nearest first."""
        ...


class PhrasePool:
    """Documents, a retriever and a miner: gives each prompt the phrases of its nearest documents.

    The phrases of the last 65,536 documents used are kept; if its text changes, they are mined again. Of a
    `DocumentCollection`, or with `model.keep_phrase_embeddings(folder)`, they are also encoded once, for later
    processes too. Several threads may use it at once.

    The phrases of prompts go to `generate`: `model.generate(**inputs, phrases=pool.phrases_for(prompts))`.

    Args:
        documents: Texts by id; a `DocumentCollection` may be the retriever as well.
        miner: Finds the phrases of a document.
        retriever: Over the same documents, by the same ids; None: by shared words (`DocumentRetriever.lexical`).
        num_documents: Nearest documents of a prompt.
        vocab_size: Rows of the model's embedding, if they are more than the tokenizer's ids.
    Raises:
        ValueError: If `num_documents` is below 1, or, without a retriever, there is no document or one has no text.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 3.2.
    """

    def __init__(
        self,
        documents: Mapping[str, str],
        tokenizer: PreTrainedTokenizerBase,
        miner: PhraseMiner,
        *,
        retriever: Retriever | None = None,
        num_documents: int = 32,
        vocab_size: int | None = None,
    ) -> None:
        if num_documents < 1:
            raise ValueError(f"num_documents must be at least 1, got {num_documents}")
        self.documents, self.tokenizer, self.miner = documents, tokenizer, miner
        self.retriever = DocumentRetriever.lexical(documents) if retriever is None else retriever
        self.num_documents, self.vocab_size = num_documents, vocab_size
        self._mined = lru_cache(_MAX_KEPT)(lambda text: MinedText.of(text, tokenizer, miner))

    def phrases_for(self, prompts: Sequence[str]) -> list[PhraseVocabulary]:
        """Return a vocabulary for each prompt, with the phrases of its nearest documents, as `generate` takes them.

        Raises:
            ValueError: If `prompts` is a single text or one is empty, or the retriever names a document that is not
                there.
        """
        check_texts(prompts, "prompts")
        vocabularies = []
        for found in self.retriever.retrieve(list(prompts), self.num_documents):
            vocabulary = PhraseVocabulary(self.tokenizer, vocab_size=self.vocab_size)
            vocabulary.add_mined((name, self._phrases_of(name)) for name, _ in found)
            for kept in (self.retriever, self.documents):
                if isinstance(kept, DocumentCollection):
                    vocabulary.embeddings_folder = kept.phrase_folder
            vocabularies.append(vocabulary)
        return vocabularies

    def _phrases_of(self, name: str) -> MinedText:
        """Return the phrases of a document, as its text is now."""
        text = self.documents.get(name)
        if text is None:
            raise ValueError(
                f"the retriever names document {name!r}, which the pool does not have; make both of the same "
                "documents, and the retriever again after some were deleted"
            )
        return self._mined(text)
