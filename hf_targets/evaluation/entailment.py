"""Whether a premise entails a hypothesis, by models of natural language inference or by shared words."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_targets.backbones.devices import best_device
from hf_targets.backbones.positions import token_limit
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import by_length
from hf_targets.data.progress import progress
from hf_targets.data.words import word_runs
from hf_targets.named_models import check_tokenizer, check_whole, model_at

_UNLIMITED = 10**9  # tokenizers without a limit tell a number above it
Pair = tuple[str, str]
"""A premise and a hypothesis."""


class Entailment(Protocol):
    """Says of each pair of a premise and a hypothesis whether the premise entails the hypothesis."""

    def __call__(self, pairs: Sequence[Pair], /) -> list[bool]:
        """Return an answer for each pair."""
        ...


def each_by(entails: Callable[[str, str], bool]) -> Entailment:
    """Return an `Entailment` that asks a function about one pair after another."""
    return lambda pairs: [bool(entails(*pair)) for pair in pairs]


def remembered(entailment: Entailment) -> Entailment:
    """Return an `Entailment` that asks another about each distinct pair only once.

    >>> ask = remembered(lambda pairs: print(len(pairs)) or [True for _ in pairs])
    >>> ask([("a", "b"), ("a", "b")]), ask([("a", "b")])
    1
    ([True, True], [True])
    """
    known: dict[Pair, bool] = {}

    def ask(pairs: Sequence[Pair], /) -> list[bool]:
        new = list(dict.fromkeys(pair for pair in pairs if pair not in known))
        if new:
            known.update(zip(new, entailment(new), strict=True))
        return [known[pair] for pair in pairs]

    return ask


class LexicalEntailment:
    """Takes a hypothesis for entailed if the premise has enough of its words.

    This is no inference: it cannot tell a sentence from its negation. It stands in where no model can be had, and its
    figures compare with each other only.

    Args:
        least_share: Share of the hypothesis's distinct words that must be in the premise, in (0, 1].
    Raises:
        ValueError: If it is out of range.

    >>> LexicalEntailment()([("Cats sleep a lot.", "cats sleep"), ("Cats sleep.", "dogs sleep")])
    [True, False]
    """

    def __init__(self, least_share: float = 0.8) -> None:
        if not 0 < least_share <= 1:
            raise ValueError(f"least_share must be in (0, 1], got {least_share}")
        self.least_share = least_share

    def __call__(self, pairs: Sequence[Pair], /) -> list[bool]:
        """Return an answer for each pair; a hypothesis without a word is not entailed."""
        return [self._holds(*pair) for pair in pairs]

    def _holds(self, premise: str, hypothesis: str) -> bool:
        known, wanted = (set(word_runs(text)) for text in (premise, hypothesis))
        return bool(wanted) and len(wanted & known) >= self.least_share * len(wanted)


class ModelEntailment:
    """Asks a model of natural language inference: a classifier with a label "entailment", or TRUE's T5.

    A classifier reads the pair, and entails where "entailment" is its most probable label. A sequence-to-sequence model
    reads "premise: ... hypothesis: ..." and entails where it writes "1", as `google/t5_xxl_true_nli_mixture` does.

    Args:
        model: In evaluation mode.
        batch_size: Pairs in a forward pass, of about equal lengths.
        max_length: Tokens of a pair that are read; None: for a classifier as many as it and the tokenizer take, for the
            other model all. The longer of a classifier's two texts is cut, and of the other model's the premise.
    Raises:
        ValueError: If the model is in training mode, a classifier without such a label or a causal model, or a size is
            below 1.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int = 8,
        max_length: int | None = None,
    ) -> None:
        if model.training:
            raise ValueError("a model must be in evaluation mode, for dropout changes its answers; call model.eval()")
        if batch_size < 1 or (max_length is not None and max_length < 1):
            raise ValueError(f"batch_size and max_length must be at least 1, got {batch_size} and {max_length}")
        self.model, self.tokenizer, self.batch_size, self.max_length = model, tokenizer, batch_size, max_length
        if model.can_generate() and not model.config.is_encoder_decoder:
            raise ValueError(
                f"a model that writes its judgement must be a sequence-to-sequence model, got {type(model).__name__}; "
                "give one, such as 'google/t5_xxl_true_nli_mixture', or a classifier"
            )
        self._label = None if model.can_generate() else _entailment_label(model)
        if self._label is not None:
            room = token_limit(model, tokenizer, max_length)
            self.max_length = room if room < _UNLIMITED else None

    @classmethod
    def from_pretrained(cls, name: str, *, batch_size: int = 8, max_length: int | None = None, **loading: Any) -> Any:
        """Load a model and its tokenizer by name or folder.

        Args:
            loading: Arguments of the model's `from_pretrained`, such as `dtype` and `device_map`. Without `device_map`
                the model goes to the accelerator, if there is one.
        Raises:
            ValueError: If there is no such model or tokenizer, or it is neither kind of model.
        """
        kind = "model of natural language inference"
        way_out = "give one, such as 'google/t5_xxl_true_nli_mixture', or judge by shared words (LexicalEntailment)"
        with model_at(name, kind, way_out):
            config = AutoConfig.from_pretrained(name)
            classifies = any("SequenceClassification" in name for name in config.architectures or ())
            writes = config.is_encoder_decoder and not classifies  # BART is both
            loader: Any = AutoModelForSeq2SeqLM if writes else AutoModelForSequenceClassification
            model, info = loader.from_pretrained(name, output_loading_info=True, **loading)
            tokenizer = AutoTokenizer.from_pretrained(name)
        check_whole(info, name, kind)
        check_tokenizer(tokenizer, model, name)
        if "device_map" not in loading:
            model.to(best_device())
        model.eval()
        return cls(model, tokenizer, batch_size=batch_size, max_length=max_length)

    @torch.no_grad()
    def __call__(self, pairs: Sequence[Pair], /) -> list[bool]:
        """Return an answer for each pair."""
        answers = [False] * len(pairs)
        with progress(len(pairs), "judging entailment", unit="pair") as bar:
            for numbers in by_length([len(premise) + len(claim) for premise, claim in pairs], self.batch_size):
                for number, answer in zip(numbers, self._judge([pairs[number] for number in numbers]), strict=True):
                    answers[number] = answer
                bar.update(len(numbers))
        return answers

    def _judge(self, pairs: Sequence[Pair]) -> list[bool]:
        limits: dict[str, Any] = {"padding": True, "return_tensors": "pt"}
        device, model = execution_device(self.model), self.model
        if self._label is not None:
            premises, claims = map(list, zip(*pairs, strict=True))
            cut = {} if self.max_length is None else {"truncation": "longest_first", "max_length": self.max_length}
            inputs = self.tokenizer(premises, claims, **cut, **limits).to(device)
            return (model(**inputs, return_dict=True).logits.argmax(dim=-1) == self._label).tolist()
        texts = [f"premise: {self._shortened(*pair)} hypothesis: {pair[1]}" for pair in pairs]
        inputs = self.tokenizer(texts, verbose=False, **limits).to(device)
        written: Any = model.generate(**inputs, max_new_tokens=10, do_sample=False)  # pyright: ignore
        return [text == "1" for text in self.tokenizer.batch_decode(written, skip_special_tokens=True)]

    def _shortened(self, premise: str, claim: str) -> str:
        """Return so much of a premise that the question to a model that writes has about `max_length` tokens."""
        if self.max_length is None:
            return premise
        asked = len(self.tokenizer(f"premise:  hypothesis: {claim}", verbose=False)["input_ids"])  # pyright: ignore
        ids: Any = self.tokenizer(premise, add_special_tokens=False, verbose=False)["input_ids"]
        return str(self.tokenizer.decode(ids[: max(self.max_length - asked, 0)]))


def _entailment_label(model: PreTrainedModel) -> int:
    labels = {number: str(label).lower() for number, label in (model.config.id2label or {}).items()}
    found = [number for number, label in labels.items() if label == "entailment"]
    if len(found) != 1:
        raise ValueError(
            f"the classifier must have a label 'entailment', and {model.name_or_path or type(model).__name__} has "
            f"{', '.join(labels.values())}; set model.config.id2label to what its classes mean"
        )
    return int(found[0])
