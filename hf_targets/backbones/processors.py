"""Which logits processors look at the text that they are given."""

from transformers.generation.logits_process import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessorList,
    MinPLogitsWarper,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

_BLIND = (
    TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper, TypicalLogitsWarper,
    EpsilonLogitsWarper, EtaLogitsWarper, SuppressTokensLogitsProcessor,
)  # fmt: skip


def read_text(processors: LogitsProcessorList) -> bool:
    """Return whether any of the processors looks at the text; if none does, all rows may share one call."""
    return not all(type(processor) in _BLIND for processor in processors)
