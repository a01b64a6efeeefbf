"""What `AutoModel` loads: the backbone of a wrapper without an output embedding, which returns hidden states."""

from os import PathLike
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


class Headless:
    """Loads a checkpoint of a wrapper and returns its `base_model`, a plain model of Transformers.

    `AutoModel` gives hidden states for any checkpoint of Transformers, whatever heads it has; feature extraction relies
    on it. The heads and the phrase encoder are left behind.
    """

    config_class: ClassVar[type[PreTrainedConfig]]
    whole: ClassVar[type[PreTrainedModel]]
    """The class that loads a checkpoint."""

    @classmethod
    def from_pretrained(cls, name: str | PathLike, *args: Any, **kwargs: Any) -> nn.Module:
        """Return the base model of a checkpoint; arguments are those of the wrapper's `from_pretrained`."""
        loaded: Any = cls.whole.from_pretrained(name, *args, **kwargs)
        return (loaded[0].base_model, loaded[1]) if isinstance(loaded, tuple) else loaded.base_model  # pyright: ignore

    @classmethod
    def _from_config(cls, config: PreTrainedConfig, **kwargs: Any) -> nn.Module:
        return cls.whole._from_config(config, **kwargs).base_model


def headless(whole: type[PreTrainedModel]) -> type[Headless]:
    """Return the class that `AutoModel` knows a wrapper's checkpoints by."""
    return type(f"Headless{whole.__name__}", (Headless,), {"whole": whole, "config_class": whole.config_class})
