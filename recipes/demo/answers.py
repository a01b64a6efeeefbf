"""Answers from documents that are shown while a model writes them: with phrases of the documents, and with drafts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, BatchEncoding, StoppingCriteriaList, StopStringCriteria

from demo.streamed import streamed, token_texts
from hf_targets import DocumentRetriever, DynamicVocabForCausalLM, PhraseVocabulary, WordNgrams, draft
from hf_targets.backbones.positions import max_positions
from hf_targets.phrases.cited_answers import first_line
from hf_targets.phrases.decoding.token_scores import ScoredByTokens
from hf_targets.phrases.highlighting import GeneratedText
from lab.answer_page import PageAnswer
from lab.passages import encode_question, passages_of

MOST_CHARACTERS, MOST_PROMPT_TOKENS = 1_000_000, 2048
MINER = WordNgrams(max_tokens=8, trimmed=True)


class Asked(NamedTuple):
    """A question, all passages of the documents, those in its prompt by their numbers, and that prompt, (1, time)."""

    question: str
    passages: Mapping[str, str]
    read: Mapping[str, Mapping[str, str]]
    inputs: BatchEncoding
    note: str


class Drafted(NamedTuple):
    """A text in pieces, each with whether it was drafted, and the passes that the model took.

    `accepted` has the drafted tokens by where they were found, once the text has ended.
    """

    pieces: Sequence[tuple[str, bool]]
    num_tokens: int
    passes: int
    accepted: Mapping[str, int]


def texts_of(pasted: str, files: Sequence[str]) -> dict[str, str]:
    """Return documents by name: of pasted text, where a line that begins with # names the text below it, and of files.

    A file whose name is taken gets a number behind it.

    Raises:
        ValueError: If there is no document, a file is no text in UTF-8, or all are longer than MOST_CHARACTERS.
    """
    texts, name = {}, "your text"
    for line in pasted.splitlines():
        if line.startswith("#") and line.strip("# \t"):
            name = line.strip("# \t")
        else:
            texts[name] = f"{texts.get(name, '')}{line}\n"
    for file in map(Path, files):
        named = chain([file.name], (f"{file.name} ({number})" for number in count(2)))
        name = next(one for one in named if one not in texts)
        try:
            texts[name] = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file.name} is no text in UTF-8; upload .txt, .md or .rst files") from error
    if (length := sum(map(len, texts.values()))) > MOST_CHARACTERS:
        raise ValueError(f"documents may have {MOST_CHARACTERS:,} characters in all, got {length:,}; leave some out")
    return texts


@dataclass
class AnsweringModel:
    """A chat model that reads the passages nearest to a question, by shared words, and answers greedily."""

    name: str
    num_passages: int
    passage_words: int
    new_tokens: int

    def __post_init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(self.name)
        self.model: Any = AutoModelForCausalLM.from_pretrained(self.name, dtype=torch.float32).eval()
        self._with_phrases = DynamicVocabForCausalLM.from_base(self.model, phrase_encoder_kind="mean")
        self._vocab_size = self.model.get_output_embeddings().weight.shape[0]

    def ask(self, question: str, pasted: str, files: Sequence[str] = ()) -> Asked:
        """Return the prompt of a question about documents, of which it has the nearest passages.

        Raises:
            ValueError: If there is no question, no prose in the documents, or the prompt is too long.
        """
        if not question.strip():
            raise ValueError("a question is missing; write one, such as: What is a context manager?")
        passages = passages_of(texts_of(pasted, files), self.passage_words)
        if not passages:
            raise ValueError("the documents have no prose; paste a paragraph of 20 letters or more, or upload a file")
        [nearest] = DocumentRetriever.lexical(passages).retrieve([question], self.num_passages)
        read = {str(n): {"title": name, "text": passages[name]} for n, (name, _) in enumerate(nearest, start=1)}
        inputs = encode_question(self.tokenizer, question, {n: one["text"] for n, one in read.items()})
        most = min(MOST_PROMPT_TOKENS, (max_positions(self.model.config) or MOST_PROMPT_TOKENS) - self.new_tokens)
        if (length := inputs["input_ids"].shape[1]) > most:  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError(f"the question and its passages may have {most} tokens, got {length}; ask a shorter one")
        note = "" if nearest[0][1] else "No passage has a word of the question, so these are just the first ones. "
        return Asked(question, passages, read, inputs, note)

    def with_phrases(self, asked: Asked) -> Iterator[PageAnswer]:
        """Yield the answer after each step: of a token, or of a phrase of the passages that were read."""
        texts = {number: one["text"] for number, one in asked.read.items()}
        phrases = PhraseVocabulary.from_documents(texts, self.tokenizer, MINER, vocab_size=self._vocab_size)
        scored = {"phrases": phrases, "logits_processor": [ScoredByTokens(self.model, phrases)]}
        given = {**asked.inputs, **scored, "do_sample": False, "max_new_static_tokens": self.new_tokens}
        ending = {"stop_strings": ["\n"], "tokenizer": self.tokenizer}
        ids, length = [], asked.inputs["input_ids"].shape[1]  # pyright: ignore[reportAttributeAccessIssue]
        for value, _ in streamed(self.model, lambda it: self._with_phrases.generate(**given, **ending, streamer=it)):
            tokens = value.flatten().tolist()
            ids += phrases.merge_phrases(tokens) if ids else tokens  # the tokens of one step are one phrase
            written = GeneratedText.of(ids, length, phrases)
            note = f"{asked.note}{written.statistics}"
            yield PageAnswer(asked.question, *first_line(written.text, written.spans), asked.read, note)

    def with_drafts(self, asked: Asked) -> Iterator[Drafted]:
        """Yield the text up to its first line break, after each pass; drafts come from prompt, text and passages."""
        drafts = draft(documents=asked.passages, tokenizer=self.tokenizer)
        ending = StoppingCriteriaList([StopStringCriteria(self.tokenizer, ["\n"])])
        given = {**asked.inputs, "do_sample": False, "max_new_tokens": self.new_tokens, "stopping_criteria": ending}
        given |= {"custom_generate": drafts, "return_dict_in_generate": True}
        report: dict[str, Any] = {}

        def write(streamer: Any) -> None:
            report.update(self.model.generate(**given, draft_streamer=streamer).draft_report)

        tokens, of_pass = [], []
        for value, passes in streamed(self.model, write):
            if tokens and passes > of_pass[-1]:
                yield self._drafted(tokens, of_pass, {})
            if value.ndim == 1:  # not the prompt
                tokens.append(int(value))
                of_pass.append(passes)
        yield self._drafted(tokens, of_pass, report["accepted"])

    def _drafted(self, tokens: list[int], of_pass: list[int], accepted: Mapping[str, int]) -> Drafted:
        """Return a text, of whose tokens each pass wrote the last one, and those before it were drafted."""
        own = [one != two for one, two in zip(of_pass, [*of_pass[1:], 0], strict=True)]
        texts = zip(token_texts(tokens, self.tokenizer), own, strict=True)
        pieces = [(text, not by_model) for text, by_model in texts if text]
        return Drafted(pieces, len(tokens), of_pass[-1], accepted)
