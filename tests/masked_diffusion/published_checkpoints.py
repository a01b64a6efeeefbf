"""Checkpoints as the published training program writes them, with the objects of OmegaConf that they hold."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hf_targets import MdlmForMaskedDiffusion
from tests.masked_diffusion.models import make_mdlm

FREQUENCIES = "backbone.rotary_emb.inv_freq"


def hyper_parameters(**changes: Any) -> dict[str, Any]:
    """Return the program's configuration as nested dictionaries, in the part that tells of the model."""
    config: dict[str, Any] = {
        "backbone": "dit",
        "parameterization": "subs",
        "time_conditioning": False,
        "T": 0,
        "model": {"length": 24, "n_heads": 4, "dropout": 0.25, "hidden_size": 32},
        "noise": {"type": "loglinear", "sigma_min": 1e-4, "sigma_max": 20},
        "training": {"change_of_variables": False, "importance_sampling": False},
        "data": {"tokenizer_name_or_path": "gpt2"},
        "resume": "${.save_dir}/checkpoints/last.ckpt",
    }
    return {"config": {**config, **changes}}


def checkpoint(model: MdlmForMaskedDiffusion, **content: Any) -> dict[str, Any]:
    """Return what Lightning saves of a model; the weights themselves are another's than the averaged ones."""
    averaged = model.to_published()
    shadow = [tensor for name, tensor in averaged.items() if name != FREQUENCIES]
    other = make_mdlm(seed=1, num_attention_heads=model.config.num_attention_heads).to_published()
    return {"state_dict": other, "ema": {"decay": 0.9999, "shadow_params": shadow}, "global_step": 7, **content}


def save_with_objects(content: dict[str, Any], file: Path) -> Path:
    """Save a checkpoint whose configuration is of classes that whoever reads it does not have."""
    nodes, containers = types.ModuleType("absent_nodes"), types.ModuleType("absent_dictconfig")

    class AnyNode:
        def __init__(self, value: Any) -> None:
            self.__dict__.update(_val=value, _metadata={"ref_type": Any, "object_type": dict}, _parent=None)

    class DictConfig:
        def __init__(self, values: dict[str, Any]) -> None:
            self.__dict__.update(_metadata={"ref_type": Any}, _parent=None)
            self._content = {
                name: DictConfig(value) if isinstance(value, dict) else AnyNode(value) for name, value in values.items()
            }

    class Tokenizer(nn.Module):
        """Any other object, with tensors and modules in it."""

    for module, kind in ((nodes, AnyNode), (containers, DictConfig), (nodes, Tokenizer)):
        kind.__module__, kind.__qualname__ = module.__name__, kind.__name__
        setattr(module, kind.__name__, kind)
    with pytest.MonkeyPatch.context() as patch:
        for module in (nodes, containers):
            patch.setitem(sys.modules, module.__name__, module)
        config = DictConfig(content["hyper_parameters"]["config"])
        torch.save({**content, "hyper_parameters": {"config": config, "tokenizer": Tokenizer()}}, file)
    return file
