"""Hidden states and attention weights of layers as outputs of a model, if a call asks for them."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor, nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import logging

logger: Any = logging.get_logger(__name__)


@dataclass(frozen=True)
class Wanted:
    """What a call asks for beside its result.

    Attributes:
        hidden_states: The input of each layer, and the last hidden states.
        attentions: The attention weights of each layer.
    """

    hidden_states: bool = False
    attentions: bool = False

    @classmethod
    def of(cls, config: PreTrainedConfig, hidden_states: bool | None, attentions: bool | None) -> Self:
        """Return what is asked for by the arguments of a call, or else by the configuration.

        Only eager attention has weights; with another one there is a warning, and no weights, as in Transformers.
        """
        hidden_states = config.output_hidden_states if hidden_states is None else hidden_states
        attentions = config.output_attentions if attentions is None else attentions
        if attentions and config._attn_implementation not in (None, "eager"):
            told = 'no weights of attention %r: output_attentions needs set_attn_implementation("eager")'
            logger.warning_once(told, config._attn_implementation)
        return cls(bool(hidden_states), bool(attentions))


NOTHING = Wanted()
"""Of a call that asks for its result alone."""


def recorded_weights(attentions: Iterable[nn.Module], *, wanted: bool) -> AbstractContextManager[list[Tensor]]:
    """Give a list of the weights that attentions of Transformers compute in this thread, in the order of their calls.

    Args:
        attentions: Modules that return their weights second.
        wanted: Whether to record any.
    """
    return _recorded(attentions) if wanted else nullcontext([])


@contextmanager
def _recorded(attentions: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    weights, here = [], threading.get_ident()

    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        if threading.get_ident() == here and output[1] is not None:
            weights.append(output[1])

    handles = [module.register_forward_hook(record) for module in attentions]
    try:
        yield weights
    finally:
        for handle in handles:
            handle.remove()
