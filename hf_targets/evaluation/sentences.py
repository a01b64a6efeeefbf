"""Texts cut into sentences."""

import logging
from collections.abc import Callable, Iterable

from hf_targets.extras import require

Splitter = Callable[[str], list[str]]


def punkt_sentences(text: str) -> list[str]:
    """Return the sentences of an English text by NLTK's published Punkt model, `nltk.sent_tokenize`.

    Raises:
        ImportError: If nltk is not installed.
        LookupError: If the model is not on this machine.
    """
    try:
        return require("nltk", extra="phrases").sent_tokenize(text)
    except LookupError:
        raise LookupError(
            "sentences are cut by NLTK's Punkt model, which is not on this machine; get it with `python -m "
            "nltk.downloader punkt_tab`, or give as split= what hf_targets.evaluation.sentences.train_splitter returns"
        ) from None


def train_splitter(texts: Iterable[str]) -> Splitter:
    """Return a function that cuts a text into sentences, by a Punkt model that learns abbreviations from these texts.

    Raises:
        ImportError: If nltk is not installed.

    >>> train_splitter([])("Cats sleep. Dogs do not! Why?")
    ['Cats sleep.', 'Dogs do not!', 'Why?']
    """
    punkt = require("nltk.tokenize.punkt", extra="phrases")
    trainer = punkt.PunktTrainer()
    for text in texts:
        trainer.train(text, finalize=False)
    return punkt.PunktSentenceTokenizer(trainer.get_params()).tokenize


def punkt_or_trained(texts: Iterable[str]) -> Splitter:
    """Return `punkt_sentences`, or where its model is not on this machine `train_splitter(texts)`.

    Raises:
        ImportError: If nltk is not installed.
    """
    try:
        punkt_sentences("Is it there?")
    except LookupError:
        logging.getLogger(__name__).warning(
            "NLTK's Punkt model is not on this machine: sentences are cut by one trained here"
        )
        return train_splitter(texts)
    return punkt_sentences
