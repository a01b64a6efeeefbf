"""What judges answers: whether a premise entails a hypothesis, and what short answer a text has to a question."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from hf_targets.backbones.positions import max_positions
from hf_targets.data.words import word_runs


def shares_words(premise: str, hypothesis: str) -> bool:
    """Return whether a premise has four of five of a hypothesis's distinct words.

    This is no inference: it cannot tell a sentence from its negation. It stands in where no model can be had, and its
    figures compare with each other only.
    """
    known, wanted = set(word_runs(premise)), set(word_runs(hypothesis))
    return bool(wanted) and len(wanted & known) >= 0.8 * len(wanted)


class Entailment:
    """Asks a model of natural language inference.

    A classifier reads the pair, and entails where "entailment" is its most probable label. A sequence-to-sequence model
    reads "premise: ... hypothesis: ..." and entails where it writes "1", as `google/t5_xxl_true_nli_mixture` does.
    """

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer, self._label = model.eval(), tokenizer, None
        if not model.can_generate():
            labels = {str(label).lower(): int(number) for number, label in model.config.id2label.items()}
            if "entailment" not in labels:
                raise ValueError(f"a classifier must have a label 'entailment', got {', '.join(labels)}; set id2label")
            self._label = labels["entailment"]

    @torch.no_grad()
    def __call__(self, premise: str, hypothesis: str) -> bool:
        """Return whether the premise entails the hypothesis; a classifier reads what it has room for."""
        if self._label is None:
            text = f"premise: {premise} hypothesis: {hypothesis}"
            inputs = self.tokenizer(text, return_tensors="pt", verbose=False).to(self.model.device)
            written = self.model.generate(**inputs, max_new_tokens=10, do_sample=False)
            return self.tokenizer.decode(written[0], skip_special_tokens=True) == "1"
        cut: Any = {"truncation": "longest_first", "max_length": token_limit(self.model, self.tokenizer)}
        inputs = self.tokenizer(premise, hypothesis, return_tensors="pt", **cut).to(self.model.device)
        return int(self.model(**inputs).logits.argmax()) == self._label


class Reader:
    """Finds the span of a context that answers a question, or nothing, by a model trained on SQuAD 2.

    The answer is the span with the highest sum of start and end scores, or "" where the sum at the first token is
    higher, as in SQuAD 2. The longer of the two texts is cut if they are too long.
    Departs: the question-answering pipeline of earlier Transformers, with which ALCE's figures were made, widened spans
    to whole words and read long contexts in overlapping windows.
    """

    def __init__(self, model: Any, tokenizer: Any, max_answer_tokens: int = 15) -> None:
        self.model, self.tokenizer, self.max_answer_tokens = model.eval(), tokenizer, max_answer_tokens

    def __call__(self, questions: Sequence[str], contexts: Sequence[str]) -> list[str]:
        """Return the answer to each question in its context, "" where there is none."""
        return [self._read(*each) for each in zip(questions, contexts, strict=True)]

    @torch.no_grad()
    def _read(self, question: str, context: str) -> str:
        cut: Any = {"truncation": "longest_first", "max_length": token_limit(self.model, self.tokenizer)}
        encoded = self.tokenizer(question, context, return_offsets_mapping=True, return_tensors="pt", **cut)
        offsets = encoded.pop("offset_mapping")[0]
        output = self.model(**encoded.to(self.model.device))
        scores = (output.start_logits[0, :, None] + output.end_logits[0]).float().cpu()
        inside = torch.tensor([part == 1 for part in encoded.sequence_ids(0)])
        length = len(inside)
        order = torch.arange(length) - torch.arange(length)[:, None]
        allowed = inside[:, None] & inside & (order >= 0) & (order < self.max_answer_tokens)
        begin, end = divmod(int(scores.masked_fill(~allowed, -torch.inf).argmax()), length)
        if not allowed.any() or scores[begin, end] <= scores[0, 0]:
            return ""
        return context[int(offsets[begin, 0]) : int(offsets[end, 1])]


@cache
def load_entailment(name: str) -> Entailment:
    """Load a model of natural language inference; its answers to pairs are not asked for twice."""
    config = AutoConfig.from_pretrained(name)
    classifies = any("SequenceClassification" in one for one in config.architectures or ())
    writes = config.is_encoder_decoder and not classifies  # BART is both
    loader: Any = AutoModelForSeq2SeqLM if writes else AutoModelForSequenceClassification
    return Entailment(loader.from_pretrained(name, device_map="auto"), AutoTokenizer.from_pretrained(name))


@cache
def load_reader(name: str) -> Reader:
    """Load a model that reads short answers, such as `gaotianyu1350/roberta-large-squad`."""
    loader: Any = AutoModelForQuestionAnswering
    return Reader(loader.from_pretrained(name, device_map="auto"), AutoTokenizer.from_pretrained(name))


def token_limit(model: Any, tokenizer: Any) -> int:
    """Return how many tokens of a text the tokenizer and the model take."""
    limit = max_positions(model.config) or tokenizer.model_max_length
    tables = [module for name, module in model.named_modules() if "position" in name.rpartition(".")[2]]
    # RoBERTa and its kin leave the first rows unused, up to that of padding
    unused = [table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None]
    return min(tokenizer.model_max_length, limit - 1 - max(unused, default=-1))
