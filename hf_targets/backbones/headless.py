"""Loading with `AutoModel`: the backbone of a wrapper without its output embedding, which returns hidden states."""

from os import PathLike
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel


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
        return (_without_output(loaded[0]), loaded[1]) if isinstance(loaded, tuple) else _without_output(loaded)  # pyright: ignore

    @classmethod
    def _from_config(cls, config: PreTrainedConfig, **kwargs: Any) -> nn.Module:
        return _without_output(cls.whole._from_config(config, **kwargs))


def _without_output(model: Any) -> nn.Module:
    """Return the base model of a wrapper; T5 and its kin have none, and another class of theirs takes their parts."""
    backbone = model.backbone
    if backbone.base_model is not backbone:
        return backbone.base_model
    with torch.device("meta"):
        bare = AutoModel.from_config(backbone.config)
    for name, _ in list(bare.named_children()):
        setattr(bare, name, getattr(backbone, name))
    return bare.train(model.training)


def headless(whole: type[PreTrainedModel]) -> type[Headless]:
    """Return the class to register with `AutoModel` for checkpoints of a wrapper class."""
    return type(f"Headless{whole.__name__}", (Headless,), {"whole": whole, "config_class": whole.config_class})
