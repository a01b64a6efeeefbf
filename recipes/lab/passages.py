"""Passages of documents: their prose in pieces that a model can read, and the prompt that asks about some of them."""

import re
from collections.abc import Mapping
from pathlib import Path
from textwrap import wrap

from transformers import BatchEncoding, PreTrainedTokenizerBase

from hf_targets import documents_of
from hf_targets.data.documentation import documentation_documents
from hf_targets.data.prompts import encode_prompt

ASKED = "Question: {}\nAnswer in one or two sentences, with the words of the text."
_SUFFIXES = (".txt", ".md", ".rst")


def read_texts(folder: str | None) -> dict[str, str]:
    """Return the text files of a folder by name; None: the reference of the Python language by its topics."""
    if folder is None:
        return {name.split("/")[-1]: text for name, text in documentation_documents(topics_only=True)}
    found = (file for file in sorted(Path(folder).rglob("*")) if file.suffix in _SUFFIXES)
    return {str(file.relative_to(folder)): file.read_text(encoding="utf-8-sig") for file in found}


def prose_of(text: str) -> list[str]:
    """Return the paragraphs of a text that are mostly letters, in a line each: no table, grammar or program."""
    paragraphs = (" ".join(one.split()) for one in re.split(r"\n\s*\n", text))
    return [one for one in paragraphs if sum(sign.isalpha() or sign == " " for sign in one) > 0.85 * len(one) > 20]


def passages_of(texts: Mapping[str, str], passage_words: int) -> dict[str, str]:
    """Return passages of the prose of texts by name; a paragraph of over 2000 characters is cut between words."""
    passages = {}
    for name, text in texts.items():
        paragraphs = (piece for one in prose_of(text) for piece in wrap(one, 2000))
        numbered = documents_of((f"{one}\n" for one in paragraphs), passage_words)
        passages |= {f"{name}, part {int(number) + 1}": part.strip() for number, part in numbered.items()}
    return passages


def encode_question(tokenizer: PreTrainedTokenizerBase, question: str, passages: Mapping[str, str]) -> BatchEncoding:
    """Return the prompt, (1, time), that asks a chat model to answer from passages by their numbers."""
    shown = "".join(f"[{number}] {text}\n\n" for number, text in passages.items())
    return encode_prompt(tokenizer, [{"role": "user", "content": shown + ASKED.format(question)}])
