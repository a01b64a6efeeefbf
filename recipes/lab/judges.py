"""What judges answers: whether a premise entails a hypothesis, and what short answer a text has to a question."""

from collections.abc import Sequence
from functools import cache
from math import isnan, log
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from hf_targets.backbones.positions import longest_text
from hf_targets.data.prompts import encode_prompt, takes_turns
from hf_targets.data.words import word_runs
from hf_targets.evaluation.perplexity import perplexity_of_generated_texts
from hf_targets.extras import require


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


def log_odds(model: Any, tokenizer: Any, questions: Sequence[str], answers: Sequence[str]) -> list[float]:
    """Return log p(first answer) - log p(second answer) of a causal model after each question.

    With a chat template the question is a user's message, which the answer begins; else a space is before the answer.
    """
    chats, rows, lengths = takes_turns(tokenizer), [], []
    for question in questions:
        begin = encode_prompt(tokenizer, [{"role": "user", "content": question}] if chats else question)
        ids = begin["input_ids"][0].tolist()  # pyright: ignore
        for answer in answers:
            rows.append(ids + tokenizer(answer if chats else f" {answer}", add_special_tokens=False)["input_ids"])
            lengths.append(len(ids))
    judged = perplexity_of_generated_texts(model, rows, prefix_lengths=lengths).per_text
    log_p = [-log(one) * (len(row) - length) for one, row, length in zip(judged, rows, lengths, strict=True)]
    odds = [one - two for one, two in zip(log_p[::2], log_p[1::2], strict=True)]
    if any(map(isnan, odds)):
        raise ValueError("the judge's logits are not numbers, so it prefers nothing; load it in another dtype")
    return odds


class AskedEntailment:
    """Asks a causal model, such as an instruction model, whether a text supports a statement: yes or no.

    It entails where the odds of "Yes" exceed those without the text, as small models favour a word (Zhao et al. 2021).
    """

    question = 'Text: {premise}\n\nDoes the text say that "{hypothesis}"? Answer with Yes or No alone.'

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer

    def __call__(self, premise: str, hypothesis: str) -> bool:
        """Return whether the premise entails the hypothesis."""
        asked = [self.question.format(premise=one, hypothesis=hypothesis) for one in (premise, "N/A")]
        with_text, without = log_odds(self.model, self.tokenizer, asked, ("Yes", "No"))
        return with_text > without


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
def load_entailment(name: str, dtype: str = "auto") -> Entailment | AskedEntailment:
    """Load a model of natural language inference, or a causal one to ask; its answers are not asked for twice."""
    config, tokenizer = AutoConfig.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    if any(one.endswith(("ForCausalLM", "LMHeadModel")) for one in config.architectures or ()):
        return AskedEntailment(AutoModelForCausalLM.from_pretrained(name, dtype=dtype, device_map="auto"), tokenizer)
    classifies = any("SequenceClassification" in one for one in config.architectures or ())
    writes = config.is_encoder_decoder and not classifies  # BART is both
    loader: Any = AutoModelForSeq2SeqLM if writes else AutoModelForSequenceClassification
    return Entailment(loader.from_pretrained(name, dtype=dtype, device_map="auto"), tokenizer)


@cache
def load_reader(name: str) -> Reader:
    """Load a model that reads short answers, such as `gaotianyu1350/roberta-large-squad`."""
    loader: Any = AutoModelForQuestionAnswering
    return Reader(loader.from_pretrained(name, device_map="auto"), AutoTokenizer.from_pretrained(name))


def check_judges(entailment: str, reader: str | None) -> None:
    """Raise an error if a judge cannot be found; models are not loaded yet."""
    require("rouge_score.rouge_scorer", extra="eval")
    for name in (entailment, reader):
        if name not in (None, "lexical"):
            AutoConfig.from_pretrained(name)


def token_limit(model: Any, tokenizer: Any) -> int:
    """Return how many tokens of a text the tokenizer and the model take."""
    return min(tokenizer.model_max_length, longest_text(model) or tokenizer.model_max_length)
