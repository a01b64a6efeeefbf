"""Texts that several models write after the same prefixes, with phrases where they can, measured and in tables."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_targets.backbones.devices import best_device
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.evaluation.continuations import (
    Continuations,
    Prefix,
    continue_prefixes,
    measure_continuations,
)
from hf_targets.evaluation.intervals import format_intervals
from hf_targets.evaluation.score_columns import format_column_differences, format_columns
from hf_targets.phrases.continuation_settings import ContinuationSettings, PhrasesOf
from hf_targets.phrases.continuations import with_phrases
from hf_targets.phrases.model import DynamicVocabForCausalLM


class TextComparison:
    """The texts and figures of models that continue the same prefixes, one model after the other.

    Args:
        settings: How models write.
        prefixes: With their true continuations.
        tokenizer: Of the prefixes and of all models.
        phrases_of: Gives a prefix its phrases.
        do_sample: In place of the setting, if it is given.
    Attributes:
        figures: By name of a model, the columns of each seed.
        texts: By name of a model, the texts of each seed.
    """

    def __init__(
        self,
        settings: ContinuationSettings,
        prefixes: Sequence[Prefix],
        tokenizer: PreTrainedTokenizerBase,
        phrases_of: PhrasesOf,
        *,
        do_sample: bool | None = None,
    ) -> None:
        self.figures: dict[str, list[dict[str, float]]] = defaultdict(list)
        self.texts: dict[str, list[list[str]]] = defaultdict(list)
        self._continued: dict[str, list[Continuations]] = defaultdict(list)
        self._settings, self._prefixes, self._tokenizer = settings, prefixes, tokenizer
        self._phrases_of = phrases_of
        self._writing = settings.writing(tokenizer, do_sample=do_sample)
        self._features: dict[str, Any] = {}
        if (name := settings.feature_model) is not None:
            self._features = {
                "feature_model": load_model(name),
                "feature_tokenizer": AutoTokenizer.from_pretrained(name),
            }

    def add(self, name: str, model: PreTrainedModel, judge: str, *, seed: int) -> dict[str, float]:
        """Let a model continue the prefixes, and return its columns (`measure_continuations`).

        Args:
            name: Of the row; its seeds are added one by one.
            model: In evaluation mode; one with a phrase encoder writes with phrases.
            judge: Name or folder of the model that scores the texts.
            seed: Of sampling.
        """
        judges = AutoTokenizer.from_pretrained(judge)
        judge_tokenizer = None if judges.get_vocab() == self._tokenizer.get_vocab() else judges
        prepare = None
        if isinstance(model, DynamicVocabForCausalLM):
            vocab_size = model.get_output_embeddings().weight.shape[0]
            prepare = with_phrases(model, lambda tokens: self._phrases_of(tokens, vocab_size))
        set_seed(seed)
        continued = continue_prefixes(
            model,
            self._prefixes,
            new_tokens=self._settings.new_tokens,
            prepare=prepare,
            batch_size=self._settings.batch_size,
            **self._writing,
        )
        given = {"judge": load_model(judge), "judge_tokenizer": judge_tokenizer, **self._features}
        columns = measure_continuations(continued, self._prefixes, self._tokenizer, **given)
        self.figures[name].append(columns)
        self.texts[name].append([str(self._tokenizer.decode(tokens)) for tokens in continued.tokens])
        self._continued[name].append(continued)
        return columns

    def tables(self) -> str:
        """Return the means over seeds, the differences from the first model, and intervals over prefixes."""
        parts = [format_columns(self.figures)]
        if differences := format_column_differences(self.figures):
            parts += ["Against the first:", differences]
        return "\n\n".join([*parts, "Intervals of 95%, over prefixes:", format_intervals(self._continued)])


def load_model(name: str, **loading: Any) -> PreTrainedModel:
    """Return a causal model in evaluation mode, on the accelerator if there is one.

    Args:
        loading: Passed to `from_pretrained`, such as `dtype`.
    """
    model: Any = repair_reformer(AutoModelForCausalLM.from_pretrained(name, **loading))
    return model.eval().to(best_device())
