"""Methods and functions that all models around a backbone share."""

# pyright: reportAttributeAccessIssue=false
# (a mixin: the model defines `backbone`, and PreTrainedModel the other methods)

import copy
import inspect
import json
import logging
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils.peft_utils import find_adapter_config_file

from hf_targets.backbones.checkpoint import HUB_ARGUMENTS, broken_files_named
from hf_targets.backbones.new_parts import new_parts_of, unwrapped
from hf_targets.backbones.output_matrix import output_embedding
from hf_targets.backbones.quantization import carry_quantizer, share_quantizer
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.backbones.weight_access import execution_device, num_rows

logger = logging.getLogger(__name__)

LOADING_ARGUMENTS = (
    *HUB_ARGUMENTS,
    *("attn_implementation", "device_map", "dtype", "max_memory", "offload_buffers", "offload_folder"),
    *("gguf_file", "quantization_config", "torch_dtype", "trust_remote_code", "use_safetensors", "variant"),
)
"""Arguments that `from_base` passes on to `from_pretrained` if the base is a name or a path."""
NEW_PARTS_LEARNING_RATE = 1e-3
"""By default, of what a target adds to a trained model, whose own rate is too small for it."""


class _DynamicCacheSupport:
    """`_supports_default_dynamic_cache` of a wrapper: the backbone's for an instance, True for the class."""

    def __get__(self, model: Any, owner: type) -> Any:
        return (lambda: True) if model is None else model.backbone._supports_default_dynamic_cache


class WrapsBackbone:
    """Mixin for a model around a `backbone`, a causal language model whose embeddings, cache and attention it uses."""

    new_part: str
    """Name of the module that the target adds."""
    trained_by: str
    """Name of the trainer that trains all of the model."""
    sft_trainer: str | None = None
    """Name of the trainer that does so within TRL's SFTTrainer."""
    base_model_prefix = "backbone"
    accepts_loss_kwargs = True  # the loss is divided by num_items_in_batch
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # we add no attention of our own: each Transformer inside checks its own support
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _supports_default_dynamic_cache = _DynamicCacheSupport()

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | PathLike, *args: Any, strict: bool = True, **kwargs: Any
    ) -> Any:
        """Load a model, whose backbone gets a copy of its `generation_config`; an adapter is put on the model it names.

        Such an adapter is what `save_pretrained` writes after `add_adapter`. With `strict=False` a checkpoint may lack
        tensors, or be that of a model to wrap, which `from_base` then loads.
        """
        name, settings = pretrained_model_name_or_path, dict(kwargs.pop("adapter_kwargs", None) or {})
        adapter = settings.pop("_adapter_model_path", None)  # an Auto class has found the model that it names
        hub = {key: kwargs[key] for key in HUB_ARGUMENTS if key in kwargs}
        if not strict and kwargs.get("config") is None:
            values, _ = PreTrainedConfig.get_config_dict(name, **hub)
            if values.get("model_type") != cls.config_class.model_type:
                wants_info = kwargs.pop("output_loading_info", False)
                model: Any = cls.from_base(name, **kwargs)
                new = {key for key in model.state_dict() if key.startswith(f"{cls.new_part}.")}
                info = {"missing_keys": new, "unexpected_keys": set(), "mismatched_keys": set(), "error_msgs": []}
                return (model, info) if wants_info else model
        file = find_adapter_config_file(str(name), **hub) if adapter is None else None
        if file is not None and "model_type" not in PreTrainedConfig.get_config_dict(name, **hub)[0]:
            adapter, name = name, json.loads(Path(file).read_text(encoding="utf-8"))["base_model_name_or_path"]
            settings |= {key: kwargs.pop(key) for key in ("revision", "subfolder") if key in kwargs}
        loaded: Any = super().from_pretrained(name, *args, strict=strict, **kwargs)  # pyright: ignore
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        share_quantizer(model)
        if model.can_generate():
            model.backbone.generation_config = copy.deepcopy(model.generation_config)
        if adapter is not None:
            model.load_adapter(str(adapter), adapter_kwargs=settings)
        return loaded

    def is_custom_code(self) -> bool:
        """Return whether the backbone is; Transformers does not initialise all modules of such a model."""
        return self.backbone.is_custom_code()

    @property
    def generation_config(self) -> Any:
        """What `generate` does unless it is told otherwise; a model that does not generate has none."""
        return self._generation_config

    @generation_config.setter
    def generation_config(self, value: GenerationConfig | None) -> None:
        """Take a configuration; one made from a model's would lose our settings when it is loaded again."""
        if value is not None:
            value._from_model_config = False
        self._generation_config = value

    def post_init(self) -> None:
        """Finish as Transformers does, and tell quantizers, which read this field, to leave the new part as it is."""
        super().post_init()  # pyright: ignore
        self._keep_in_fp32_modules: set = {*self._keep_in_fp32_modules, self.new_part}

    def _get_dtype_plan(self, dtype: torch.dtype) -> dict:
        """Return the parts that stay in float32; the new part has the type of the model."""
        plan: dict = super()._get_dtype_plan(dtype)  # pyright: ignore
        return {name: kept for name, kept in plan.items() if name != self.new_part}

    @property
    def is_quantized(self) -> bool:
        """False: the new part is not, so that a Trainer takes the model without an adapter."""
        return False

    @is_quantized.setter
    def is_quantized(self, value: bool) -> None:
        """Ignore what a quantizer sets."""

    @property
    def _tied_weights_keys(self) -> dict[str, str]:
        """The backbone's tied weights, by their names here: peft and accelerate ask the outermost model."""
        return {f"backbone.{a}": f"backbone.{b}" for a, b in self.backbone.all_tied_weights_keys.items()}

    @property
    def base_model(self) -> nn.Module:
        """The backbone without its output embedding; `base_model_prefix` names the whole one, as checkpoints do."""
        return self.backbone.base_model

    def train(self, mode: bool = True) -> Self:
        """Set the mode; a frozen backbone stays in evaluation mode, as in generation."""
        super().train(mode)
        if mode and not any(parameter.requires_grad for parameter in self.backbone.parameters()):
            self.backbone.eval()
        return self

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the backbone's input embedding."""
        return self.backbone.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the backbone's input embedding."""
        self.backbone.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Linear:
        """Return the backbone's output embedding."""
        return output_embedding(self.backbone)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the backbone's vocabulary."""
        embedding = self.backbone.resize_token_embeddings(*args, **kwargs)
        if args or kwargs:
            self.vocab_size = num_rows(embedding)  # as Transformers' models have it then
        return embedding

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the backbone's output embedding."""
        self.backbone.set_output_embeddings(new_embeddings)

    def add_model_tags(self, tags: list[str] | str) -> None:
        """Tag the model; TRL's trainers call this on the model that they will train.

        Raises:
            ValueError: If it is SFTTrainer, which computes the loss itself and would never train the new part, or
                RewardTrainer.
        """
        names = {tags} if isinstance(tags, str) else set(tags)
        new_part = getattr(self, self.new_part)
        if {"trl", "sft"} <= names:
            raise ValueError(
                f"SFTTrainer computes its own loss and would never train this model's {self.new_part}; use "
                f"{self.sft_trainer or self.trained_by} of hf_targets, or give SFTTrainer model.backbone"
            )
        if "reward-trainer" in names:
            raise ValueError("RewardTrainer trains a classifier, and this is none; save model.backbone, and give that")
        if (
            "trl" in names
            and "hf-targets" not in names
            and any(parameter.requires_grad for parameter in new_part.parameters())
        ):
            told = "TRL trains the backbone but not the %s, which will no longer fit: train them again with %s"
            logger.warning(told, self.new_part, self.trained_by)
        super().add_model_tags(tags)  # pyright: ignore

    def _validate_model_kwargs(self, model_kwargs: dict[str, Any]) -> None:
        """Check arguments of `generate` as Transformers does, and those that some backbones do not take."""
        takes = {
            "token_type_ids": self.backbone.base_model.forward,
            "inputs_embeds": self.backbone.prepare_inputs_for_generation,
        }
        for name, function in takes.items():
            if model_kwargs.get(name) is not None and name not in inspect.signature(function).parameters:
                raise ValueError(f"{type(self.backbone).__name__} does not generate from {name}; leave it out")
        of_backbone = inspect.signature(self.backbone.prepare_inputs_for_generation).parameters
        own = of_backbone.keys() - inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters.keys()
        others = {name: value for name, value in model_kwargs.items() if name not in own}
        super()._validate_model_kwargs(others)  # pyright: ignore


def load_base(
    base: PreTrainedModel | str | PathLike,
    backbone_kwargs: dict[str, Any] | None,
    name: str = "base",
    *,
    auto_class: Any = AutoModelForCausalLM,
) -> PreTrainedModel:
    """Return `base` if it is a model; if it is a name or path, load that model.

    Args:
        backbone_kwargs: Arguments of `from_pretrained`.
        name: The name of the caller's argument, for the error.
    Raises:
        ValueError: If `base` is neither, has an adapter of peft, or one of its files is cut short.
    """
    if isinstance(base, str | PathLike):
        with broken_files_named(base):
            base = auto_class.from_pretrained(base, **(backbone_kwargs or {}))
    if hasattr(base, "peft_config"):
        raise ValueError(
            f"{name} has an adapter, which would be lost when the new model is saved; put the adapter on the new model "
            "instead (peft.get_peft_model, add_adapter), or merge it first: "
            "peft.PeftModel.from_pretrained(base, adapter).merge_and_unload()"
        )
    if not isinstance(base, PreTrainedModel):
        raise ValueError(f"{name} must be a Transformers model, its name or its path, got {type(base).__name__}")
    return base


def is_trained(base: PreTrainedModel) -> bool:
    """Return whether a model was loaded; one that is made of a configuration may have the name of that."""
    is_part = any(getattr(parameter, "_is_hf_initialized", False) for parameter in base.parameters())
    return bool(base.name_or_path) and (is_part or hasattr(base, "_weight_conversions"))  # which a copy has too


def new_parts_rate(model: nn.Module, learning_rate: float) -> float | None:
    """Return the learning rate of the part that a target adds; None if it is the backbone's, which is not trained."""
    base = getattr(unwrapped(model), "backbone", None)
    if not isinstance(base, PreTrainedModel) or not new_parts_of(model):
        return None
    return max(NEW_PARTS_LEARNING_RATE, learning_rate) if is_trained(base) else None


def place_new_part(model: Any, base: PreTrainedModel, new_part: str) -> None:
    """Move the part that a target adds to the device and type of the output matrix, and set `hf_device_map`."""
    output = output_embedding(base)
    device = execution_device(output)
    getattr(model, new_part).to(device=device, dtype=output.weight.dtype)
    carry_quantizer(model, base, new_part)
    devices = getattr(base, "hf_device_map", None)
    if devices is not None:  # Transformers needs it to save offloaded weights
        of_backbone = {f"backbone.{name}".rstrip("."): on for name, on in devices.items()}
        model.hf_device_map = {**of_backbone, new_part: str(device)}


def check_loading(loading: dict[str, Any], *sources: Any) -> None:
    """Raise a ValueError if there are arguments for loading, and all of the sources are models or None."""
    if loading and not any(isinstance(source, str | PathLike) for source in sources):
        raise ValueError(
            f"{', '.join(loading)}: this says how a model is loaded, and the base is a model already; pass it to "
            "from_pretrained"
        )


def split_fields(
    config_class: type, given: dict[str, Any], allowed: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the arguments of `from_base` into fields of the configuration, those allowed, and arguments for loading.

    Raises:
        ValueError: If an argument is neither; the message lists the fields.
    """
    fields = {name: value for name, value in given.items() if name in allowed}
    loading = {name: value for name, value in given.items() if name in LOADING_ARGUMENTS}
    if unknown := given.keys() - fields.keys() - loading.keys():
        raise ValueError(
            f"no such field of {config_class.__name__}: {', '.join(sorted(unknown))}; there are {', '.join(allowed)}. "
            "other arguments of from_pretrained are given as backbone_kwargs"
        )
    return fields, loading


def backbone_inputs(**optional: Any) -> dict[str, Any]:
    """Return the arguments that are not None; a backbone may not accept the others."""
    return {name: value for name, value in optional.items() if value is not None}


def backbone_of(
    config: PreTrainedConfig, given: PreTrainedModel | None, auto_class: Any = AutoModelForCausalLM
) -> PreTrainedModel:
    """Return the backbone of a wrapper: the given model, whose weights stay as they are, or a new one.

    Reformers are mended (`repair_reformer`).
    """
    if given is not None:
        keep_weights(given)
    return repair_reformer(auto_class.from_config(config) if given is None else given)


def keep_weights(*models: PreTrainedModel) -> None:
    """Mark models as initialised, so that the `post_init` of a wrapper does not change their weights."""
    for model in models:
        for module in model.modules():
            module._is_hf_initialized = True  # pyright: ignore[reportArgumentType]


class Headless:
    """`AutoModel` of a wrapper: loads a checkpoint and returns its `base_model`, a plain model of Transformers.

    Feature extraction relies on `AutoModel` to return hidden states for any checkpoint. What a target adds is dropped.
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
