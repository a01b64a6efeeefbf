"""Settings of a program whose models answer the questions of a file, and the questions as they are asked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.positions import room_after
from hf_targets.evaluation.answers import check_references
from hf_targets.evaluation.cited_prompts import INSTRUCTIONS, check_prompts_fit, cited_prompts, shown_documents
from hf_targets.evaluation.cited_questions import Question, load_questions
from hf_targets.evaluation.demonstrations import choose_demonstration, demonstration_answer
from hf_targets.evaluation.sentences import Splitter, punkt_or_trained


@dataclass
class QuestionSettings:
    """Which questions are answered, and how they are asked."""

    settings_title: ClassVar[str] = "Questions"

    questions: str = field(default="", metadata={"help": "File of questions with documents, with ALCE's field names."})
    num_questions: int = field(default=100, metadata={"help": "The first ones; the demonstration is none of them."})
    num_documents: int = field(default=3, metadata={"help": "Documents of a question, the first ones."})
    document_words: int | None = field(default=None, metadata={"help": "Words of a document. None: all."})
    instruction: Literal["full", "light", "none"] = field(
        default="full", metadata={"help": "ALCE's, its short one, or none."}
    )
    demonstration: bool = field(default=True, metadata={"help": "A question and its answer before each question."})
    new_tokens: int = field(default=300, metadata={"help": "Tokens to generate, at most."})

    def ask(self, *, for_reader: bool = False) -> "AskedQuestions":
        """Return the questions of the file as these settings ask them, once they are known to be measurable.

        Args:
            for_reader: Whether a reader is to answer them.
        Raises:
            ValueError: As `load_questions`, `check_references`, `shown_documents` and `choose_demonstration`, or if a
                number is below 1 or the file has too few questions.
        """
        if not self.questions:
            raise ValueError("questions must name a file of questions with documents, in ALCE's format; give one")
        if self.num_questions < 1 or self.new_tokens < 1:
            raise ValueError(f"numbers must be 1 or more, got {self.num_questions=} and {self.new_tokens=}")
        every = load_questions(self.questions)
        most = len(every) - self.demonstration
        if self.num_questions > most:
            reason = ", of which one is the demonstration" if self.demonstration else ""
            raise ValueError(
                f"num_questions must be at most {most}, as {self.questions} has {len(every)} questions{reason}, got "
                f"{self.num_questions}; lower it"
            )
        items, others = every[: self.num_questions], every[self.num_questions :]
        check_references(items, for_reader=for_reader)
        shown = partial(shown_documents, num_documents=self.num_documents, document_words=self.document_words)
        documents = [shown(item) for item in items]
        split, splitter = punkt_or_trained([one["text"] for of_item in documents for one in of_item])
        demonstration = None
        if self.demonstration:
            example = choose_demonstration(others, self.num_documents, self.document_words)
            demonstration = example, demonstration_answer(example, shown(example), split)
        return AskedQuestions(self, items, documents, demonstration, split, splitter)


@dataclass(frozen=True)
class AskedQuestions:
    """Questions of a file, and what their prompts and scores take.

    Attributes:
        items: The questions.
        documents: Those of each question that its prompt shows, cut as there.
        demonstration: A question that is not evaluated, and its answer with citations.
        split: Cuts texts into sentences.
        splitter: What `split` is, in words.
    """

    settings: QuestionSettings
    items: Sequence[Question]
    documents: Sequence[Sequence[Mapping[str, str]]]
    demonstration: tuple[Question, str] | None
    split: Splitter
    splitter: str

    def prompts(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """Return the prompts, once each is known to leave the model room for an answer.

        Args:
            model: The one that has the positions: of a model with phrases, its backbone.
        Raises:
            ValueError: If one leaves too little room.
        """
        asked = self.settings
        given: dict[str, Any] = {
            "num_documents": asked.num_documents,
            "instruction": INSTRUCTIONS[asked.instruction],
        }

        def prompts_of(document_words: int | None) -> list[str]:
            return cited_prompts(self.items, self.demonstration, document_words=document_words, **given)

        def num_tokens(prompt: str) -> int:
            return len(tokenizer(prompt, verbose=False)["input_ids"])  # pyright: ignore[reportArgumentType]

        limits = {"document_words": asked.document_words, "new_tokens": asked.new_tokens}
        return check_prompts_fit(prompts_of, num_tokens, room_after(model, 0), **limits)
