"""Questions with documents in ALCE's format, and the prompts that ask for an answer with citations.

Source: Gao et al. 2023, "Enabling Large Language Models to Generate Text with Citations", its data and its program.
"""

import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.positions import max_positions
from hf_targets.data.prompts import Turns, encode_prompt, takes_turns
from hf_targets.data.words import word_runs
from hf_targets.evaluation.sentences import Splitter, punkt_or_trained

Question = Mapping[str, Any]
"""`question`, `docs` with `title` and `text`, `qa_pairs` with `question` and `short_answers`, and `annotations` with
`long_answer`."""

Exchange = tuple[str, Sequence[Mapping[str, str]], str]
"""A question, its documents, and its answer."""

INSTRUCTIONS = {
    "full": "Instruction: Write an accurate, engaging, and concise answer for the given question using only the "
    "provided search results (some of which might be irrelevant) and cite them properly. Use an unbiased and "
    "journalistic tone. Always cite for any factual claim. When citing several search results, use [1][2][3]. Cite at "
    "least one document and at most three documents in each sentence. If multiple documents support the sentence, only "
    "cite a minimum sufficient subset of the documents.",
    "light": "Instruction: Write a high-quality answer for the given question using only the provided search results "
    "and cite them properly using [1][2][3].",
    "none": "",
    "quotes": "Instruction: Answer the given question with short sentences of the search results, word for word, each "
    'in quotation marks and with the number of its document after it, like "a sentence of the document"[1].',
}
"""What a prompt begins with: ALCE's instruction for ASQA, its short one, nothing, or one that asks for quotations."""
_END = re.compile("[.!?\u3002\uff0e\uff01\uff1f]+[\"'\u201d\u2019)\\]\u300d\u300f\uff09]*$")


@dataclass
class QuestionSettings:
    """Which questions are answered, and how they are asked."""

    questions: str = field(default="", metadata={"help": "File of questions with documents, with ALCE's field names."})
    num_questions: int = field(default=100, metadata={"help": "The first ones; the demonstration is none of them."})
    num_documents: int = field(default=3, metadata={"help": "Documents of a question, the first ones."})
    document_words: int | None = field(default=None, metadata={"help": "Words of a document. None: all."})
    instruction: Literal["full", "light", "none", "quotes"] = field(
        default="full", metadata={"help": 'ALCE\'s, short, none; "quotes": sentences of documents in quotation marks.'}
    )
    chat: bool | None = field(
        default=None, metadata={"help": "Ask in messages, by the chat template. None: where there is one. False: text."}
    )
    demonstration: bool = field(default=True, metadata={"help": "A question and its answer before each question."})
    new_tokens: int = field(default=300, metadata={"help": "Tokens to generate, at most."})

    def ask(self, tokenizer: PreTrainedTokenizerBase) -> "AskedQuestions":
        """Return the questions as these settings ask them of the model of a tokenizer."""
        if not self.questions:
            raise ValueError("a file has the questions; give --questions FILE")
        every = load_questions(self.questions)
        items, others = every[: self.num_questions], every[self.num_questions :]
        if len(items) < self.num_questions or (self.demonstration and not others):
            raise ValueError(f"{self.questions} has {len(every)} questions, one to demonstrate; lower num_questions")
        documents = [shown_documents(item, self.num_documents, self.document_words) for item in items]
        split = punkt_or_trained(one["text"] for of_item in documents for one in of_item)
        instruction, begin = INSTRUCTIONS[self.instruction], []
        if self.demonstration:
            example, shown = choose_demonstration(others, self.num_documents, self.document_words)
            quotes = self.instruction == "quotes"
            begin = [(example["question"], shown, cited_answer(example["annotations"], shown, split, quotes=quotes))]
        write = cited_messages if takes_turns(tokenizer, self.chat) else cited_text
        asked = zip((item["question"] for item in items), documents, strict=True)
        return AskedQuestions(items, documents, [write([*begin, (*one, "")], instruction) for one in asked], split)


@dataclass(frozen=True)
class AskedQuestions:
    """Questions of a file: the documents that their prompts show, the prompts, and what cuts texts into sentences."""

    items: Sequence[Question]
    documents: Sequence[Sequence[Mapping[str, str]]]
    prompts: Sequence[str | Turns]
    split: Splitter

    def check_room(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, new_tokens: int) -> None:
        """Raise a ValueError if a prompt and its answer do not fit into a model's positions: nothing is cut."""
        longest = max(encode_prompt(tokenizer, prompt)["input_ids"].shape[1] for prompt in self.prompts)
        limit = max_positions(model.config)  # trained on so many, where they are computed for any length
        room = None if limit is None else limit - longest + 1
        if room is not None and room < new_tokens:
            raise ValueError(
                f"the model has room for {room} tokens after the longest prompt, not {new_tokens}; lower "
                "document_words, num_documents or new_tokens"
            )


def load_questions(path: str | Path) -> list[dict[str, Any]]:
    """Return the questions of a file: JSON lines or one JSON list, compressed by gzip or not."""
    content = Path(path).read_bytes()
    text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode("utf-8-sig")
    lines = text.split("\n")
    items = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in lines if line.strip()]
    for number, item in enumerate(items, start=1):
        if lacking := [name for name in ("question", "docs", "qa_pairs", "annotations") if not item.get(name)]:
            raise ValueError(f"{path}: question {number} lacks {' and '.join(lacking)}; leave it out")
        inner = {"docs": ("title", "text"), "qa_pairs": ("short_answers",), "annotations": ("long_answer",)}
        for name, needed in inner.items():
            if lacking := [one for one in needed if not all(one in part for part in item[name])]:
                told = f"{path}: {name} of question {number} lack {' and '.join(lacking)}; leave the question out"
                raise ValueError(told)
    return items


def shown_documents(
    question: Question, num_documents: int = 3, document_words: int | None = None
) -> list[dict[str, str]]:
    """Return the first documents of a question as a prompt shows them, each with `title` and `text` in one line.

    A first line that repeats the title, as retrieved Wikipedia passages have it, is left out, as is what follows the
    first `document_words` words.
    """
    documents = question["docs"][:num_documents]
    if len(documents) < num_documents:
        raise ValueError(f"{question['question']!r:.60} has {len(documents)} documents; lower num_documents")
    shown = []
    for document in documents:
        title, text = " ".join(document["title"].split()), document["text"].strip()
        first, _, rest = text.partition("\n")
        if rest.strip() and first.strip().strip('"') == title.strip('"'):
            text = rest
        shown.append({"title": title, "text": " ".join(text.split()[:document_words])})
    return shown


def cited_prompt(question: str, documents: Sequence[Mapping[str, str]], *, answer: str = "", instruction: str) -> str:
    """Return a question with its documents and the beginning of its answer, or the whole one, as ALCE: without a space.

    >>> print(cited_prompt("Do cats sleep?", [{"title": "Cat", "text": "Cats sleep."}], instruction="Answer."))
    Answer.
    <BLANKLINE>
    Question: Do cats sleep?
    <BLANKLINE>
    Document [1](Title: Cat): Cats sleep.
    <BLANKLINE>
    Answer:
    """
    shown = "Document [{}](Title: {title}): {text}\n"
    listed = "".join(shown.format(number, **document) for number, document in enumerate(documents, start=1))
    parts = [instruction] * bool(instruction) + [f"Question: {' '.join(question.split())}"]
    return "\n\n".join([*parts, f"{listed}\nAnswer:{answer}"])


def cited_text(exchanges: Sequence[Exchange], instruction: str) -> str:
    """Return questions with their answers, the last one's to come, as one text, each after the instruction."""
    return "\n\n\n".join(cited_prompt(one, of, answer=said, instruction=instruction) for one, of, said in exchanges)


def cited_messages(exchanges: Sequence[Exchange], instruction: str) -> Turns:
    """Return them as messages: the instruction as the system's, each question as the user's, the model's answers.

    Each question follows its documents: where it came before them, a small model gave the demonstration's answer.
    """
    turns = [{"role": "system", "content": instruction.removeprefix("Instruction: ")}] * bool(instruction)
    for question, documents, answer in exchanges:
        shown = cited_prompt("", documents, instruction="").removeprefix("Question: \n\n").removesuffix("\nAnswer:")
        asked = f"{shown}\nQuestion: {' '.join(question.split())}"
        turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return turns[:-1]


def choose_demonstration(
    questions: Iterable[Question], num_documents: int = 3, document_words: int | None = None
) -> tuple[Question, list[dict[str, str]]]:
    """Return the question whose first long answer has the largest share of its words in its documents, and these."""

    def share(each: tuple[Question, list[dict[str, str]]]) -> float:
        wanted = set(word_runs(each[0]["annotations"][0]["long_answer"]))
        return len(wanted & {word for one in each[1] for word in word_runs(one["text"])}) / max(len(wanted), 1)

    enough = (question for question in questions if len(question["docs"]) >= num_documents)
    return max(((one, shown_documents(one, num_documents, document_words)) for one in enough), key=share)


def cited_answer(
    annotations: Sequence[Mapping[str, str]],
    documents: Sequence[Mapping[str, str]],
    split: Splitter,
    *,
    quotes: bool = False,
) -> str:
    """Return a question's first long answer, each sentence citing the document that has most of its words.

    With `quotes` the sentence of that document that has most of them stands in its place, in quotation marks.

    The marker stands before the full stop, as in "Cats sleep[1].", without a space, as phrases with markers write it.
    Of documents with as many words the first is cited; a sentence that shares no word with any cites none.
    """

    def cited(sentence: str) -> str:
        wanted = set(word_runs(sentence))
        shared = [len(wanted.intersection(word_runs(f"{one['title']} {one['text']}"))) for one in documents]
        if not max(shared):
            return sentence
        best = shared.index(max(shared))
        if quotes:
            said = max(split(documents[best]["text"]), key=lambda one: len(wanted.intersection(word_runs(one))))
            return f'"{said}"[{best + 1}]'
        end = match.start() if (match := _END.search(sentence)) else len(sentence)
        return f"{sentence[:end]}[{best + 1}]{sentence[end:]}"

    return " ".join(dict.fromkeys(map(cited, split(" ".join(annotations[0]["long_answer"].split())))))
