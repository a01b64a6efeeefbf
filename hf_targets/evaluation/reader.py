"""A model that reads a short answer in a text: extractive question answering."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.devices import best_device
from hf_targets.backbones.positions import token_limit
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import by_length
from hf_targets.data.progress import progress
from hf_targets.data.words import check_texts
from hf_targets.named_models import check_tokenizer, check_whole, model_at


class ExtractiveReader:
    """Finds the span of a context that answers a question, or nothing, by a model trained on SQuAD 2.

    The answer is the span with the highest sum of start and end scores, of at most `max_answer_tokens` tokens, or ""
    where the sum at the first token is higher, as in SQuAD 2. The longer of the two texts is cut if they are too long.
    Departs: the question-answering pipeline of earlier Transformers, with which ALCE's figures were made, widened spans
    to whole words and read long contexts in overlapping windows.

    Args:
        model: In evaluation mode, such as `AutoModelForQuestionAnswering` of "gaotianyu1350/roberta-large-squad".
        tokenizer: A fast one.
        batch_size: Questions in a forward pass, of about equal lengths.
    Raises:
        ValueError: If the model is in training mode, the tokenizer is a slow one, or a size is below 1.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int = 16,
        max_answer_tokens: int = 15,
    ) -> None:
        if model.training:
            raise ValueError("a reader must be in evaluation mode, for dropout changes its answers; call model.eval()")
        if not tokenizer.is_fast:
            raise ValueError(f"a reader takes a fast tokenizer, got {type(tokenizer).__name__}; load it with use_fast")
        if batch_size < 1 or max_answer_tokens < 1:
            raise ValueError(f"sizes must be at least 1, got {batch_size=} and {max_answer_tokens=}")
        self.model, self.tokenizer = model, tokenizer
        self.batch_size, self.max_answer_tokens = batch_size, max_answer_tokens
        self._max_length = token_limit(model, tokenizer)

    @classmethod
    def from_pretrained(cls, name: str, **loading: Any) -> "ExtractiveReader":
        """Load a model and its tokenizer by name or folder.

        Args:
            loading: Arguments of the model's `from_pretrained`, such as `dtype` and `device_map`. Without `device_map`
                the model goes to the accelerator, if there is one.
        Raises:
            ValueError: If there is no such model or tokenizer, or the model was not trained to answer questions.
        """
        loader: Any = AutoModelForQuestionAnswering
        with model_at(name, "reader", "give one, such as 'gaotianyu1350/roberta-large-squad', or measure without it"):
            model, info = loader.from_pretrained(name, output_loading_info=True, **loading)
            tokenizer = AutoTokenizer.from_pretrained(name)
        check_whole(info, name, "reader")
        check_tokenizer(tokenizer, model, name)
        if "device_map" not in loading:
            model.to(best_device())
        return cls(model.eval(), tokenizer)

    @torch.no_grad()
    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> list[str]:
        """Return the answer to each question in its context, "" where there is none.

        Raises:
            ValueError: If either is no list of texts, or there are not as many contexts as questions.
        """
        check_texts(questions, "questions")
        check_texts(contexts, "contexts")
        if len(questions) != len(contexts):
            raise ValueError(f"each question needs a context, got {len(questions)} questions and {len(contexts)}")
        answers = [""] * len(questions)
        with progress(len(questions), "reading answers", unit="question") as bar:
            for numbers in by_length([len(context) for context in contexts], self.batch_size):
                batch = ([questions[number] for number in numbers], [contexts[number] for number in numbers])
                for number, answer in zip(numbers, self._read(*batch), strict=True):
                    answers[number] = answer
                bar.update(len(numbers))
        return answers

    def _read(self, questions: list[str], contexts: list[str]) -> list[str]:
        encoded = self.tokenizer(
            questions,
            contexts,
            truncation="longest_first",
            max_length=self._max_length,
            padding=True,
            padding_side="right",  # the first token stands for no answer
            return_offsets_mapping=True,
            return_tensors="pt",
        )
        offsets = encoded.pop("offset_mapping")
        output = self.model(**encoded.to(execution_device(self.model)), return_dict=True)
        starts, ends = output.start_logits.float().cpu(), output.end_logits.float().cpu()
        answers = []
        for row, context in enumerate(contexts):
            inside = torch.tensor([part == 1 for part in encoded.sequence_ids(row)])
            scores = starts[row][:, None] + ends[row]
            length = len(inside)
            order = torch.arange(length) - torch.arange(length)[:, None]
            allowed = inside[:, None] & inside & (order >= 0) & (order < self.max_answer_tokens)
            best = int(scores.masked_fill(~allowed, -torch.inf).argmax())
            begin, end = best // length, best % length
            nothing = float(scores[0, 0])
            if allowed.any() and float(scores[begin, end]) > nothing:
                answers.append(context[int(offsets[row, begin, 0]) : int(offsets[row, end, 1])])
            else:
                answers.append("")
        return answers
