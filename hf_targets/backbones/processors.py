"""A check whether logits processors read the text."""

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

_IGNORE_TEXT = (
    TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, MinPLogitsWarper, TypicalLogitsWarper,
    EpsilonLogitsWarper, EtaLogitsWarper, SuppressTokensLogitsProcessor,
)  # fmt: skip


def read_text(processors: LogitsProcessorList) -> bool:
    """Return whether any processor reads the text; if none does, one call can process rows of all lengths."""
    return not all(type(processor) in _IGNORE_TEXT for processor in processors)
