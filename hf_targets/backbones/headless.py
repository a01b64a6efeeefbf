"""Loading with `AutoModel`: the backbone of a wrapper without its output embedding, which returns hidden states."""

from os import PathLike
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


class Headless:
    """Loads a checkpoint of a wrapper and returns its `base_model`, a plain model of Transformers.

    Feature extraction relies on `AutoModel` to return hidden states for any checkpoint of Transformers, with or without
    heads. The heads and the phrase encoder of the checkpoint are dropped.
    """

    config_class: ClassVar[type[PreTrainedConfig]]
    whole: ClassVar[type[PreTrainedModel]]
    """The wrapper's class, which loads the checkpoint."""

    @classmethod
    def from_pretrained(cls, name: str | PathLike, *args: Any, **kwargs: Any) -> nn.Module:
        """Return the base model of a checkpoint; takes the arguments of the wrapper's `from_pretrained`."""
        loaded: Any = cls.whole.from_pretrained(name, *args, **kwargs)
        return (loaded[0].base_model, loaded[1]) if isinstance(loaded, tuple) else loaded.base_model  # pyright: ignore

    @classmethod
    def _from_config(cls, config: PreTrainedConfig, **kwargs: Any) -> nn.Module:
        return cls.whole._from_config(config, **kwargs).base_model


def headless(whole: type[PreTrainedModel]) -> type[Headless]:
    """Return the class to register with `AutoModel` for checkpoints of a wrapper class."""
    return type(f"Headless{whole.__name__}", (Headless,), {"whole": whole, "config_class": whole.config_class})
