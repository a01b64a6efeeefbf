"""RETRO around any causal language model: its text is read in chunks, and each chunk's neighbours after it."""

import copy
from contextvars import ContextVar
from dataclasses import field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, Cache, DynamicCache, GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils.hub import cached_file

from hf_targets.backbones.checkpoint import HUB_ARGUMENTS, StrictLoading, check_tensors
from hf_targets.backbones.configuration import AnswersForBackbone, NamesItsPackage, SubConfigSpec, check_fields
from hf_targets.backbones.generation import inputs_of_step
from hf_targets.backbones.inputs import check_ids, check_prompt_mask, check_shapes
from hf_targets.backbones.new_parts import ZeroInitLinear
from hf_targets.backbones.published import read_tensors
from hf_targets.backbones.weight_access import is_readable, num_rows
from hf_targets.backbones.weight_hash import weight_hash
from hf_targets.backbones.wrapping import (
    WrapsBackbone,
    backbone_inputs,
    backbone_of,
    check_loading,
    load_base,
    place_new_part,
    split_fields,
)
from hf_targets.baselines.retro_layers import Reading, RetroLayers, RetroMemory
from hf_targets.baselines.retro_neighbors import Retrieve, written_neighbors

_FIELDS = ("layers", "chunk_length", "neighbor_length", "num_encoder_layers", "freeze_base")
_LAYERS = "Layers, from 1, that cross-attention follows; None: every third from the sixth on, or from the middle on."
_OF_AUTO = ("config", "adapter_kwargs")  # what the Auto classes pass beside the arguments of a user
_READING: ContextVar[Reading | None] = ContextVar("reading", default=None)


class RetroConfig(NamesItsPackage, AnswersForBackbone, PreTrainedConfig):
    """Configuration of `RetroForCausalLM`: the backbone's, and the new layers; a ValueError tells a wrong value."""

    model_type = "retro"
    keys_to_ignore_at_inference = ["past_key_values", "hidden_states", "attentions"]  # noqa: RUF012, Trainer adds to it
    sub_configs_defaults = {"backbone": SubConfigSpec(config_class=AutoConfig, model_type="gpt2")}  # noqa: RUF012

    backbone: dict | PreTrainedConfig | None = field(default=None, metadata={"help": "Configuration of the backbone."})
    layers: list | tuple | None = field(default=None, metadata={"help": _LAYERS})
    chunk_length: int = field(default=64, metadata={"help": "m: tokens of a chunk; 1 or more."})
    neighbor_length: int = field(default=128, metadata={"help": "Most tokens of a neighbour; 1 or more."})
    num_encoder_layers: int = field(default=2, metadata={"help": "Layers of the neighbours' encoder; 1 or more."})
    freeze_base: bool = field(default=True, metadata={"help": "Whether only the new layers are trained."})
    base_model_name_or_path: str | None = field(default=None, metadata={"help": "Name of the base model."})
    base_hash: str | None = field(default=None, metadata={"help": "Hash of its weights; found by itself."})
    retro_only: bool = field(default=False, metadata={"help": "Whether a checkpoint holds the new layers alone."})

    def __post_init__(self, **kwargs: Any) -> None:
        check_fields(self)
        super().__post_init__(**kwargs)
        depth = cast(int, self.num_hidden_layers)
        self.layers = list(range(min(6, max(1, depth // 2)), depth + 1, 3) if self.layers is None else self.layers)
        if not self.layers or self.layers != sorted({*self.layers} & {*range(1, depth + 1)}):
            raise ValueError(f"layers must be numbers from 1 to {depth}, in order, got {self.layers}")
        if min(self.chunk_length, self.neighbor_length, self.num_encoder_layers) < 1:
            raise ValueError("chunk_length, neighbor_length and num_encoder_layers must be 1 or more")

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """Return the text configuration of the backbone, which has the vocabulary, the layers and the cache."""
        return cast(PreTrainedConfig, self.backbone).get_text_config(decoder=decoder, encoder=encoder)


class RetroForCausalLM(WrapsBackbone, StrictLoading, PreTrainedModel, GenerationMixin):
    """Any causal language model that also reads neighbours: passages of other texts that are like its own.

    A text is cut into chunks of m tokens, counted from each row's first token, padding aside; a packed row is one text.
    The last token of a chunk, and the m - 1 after it, attend to the chunk's neighbours after some of the layers, which
    stay Transformers' own (chunked cross-attention). An encoder reads the neighbours together with the chunk's states.
    Without neighbours, or untrained, the output is the backbone's, bit for bit. Outputs and loss are of its kind, and
    any Trainer trains the model.

    >>> model = RetroForCausalLM.from_base("HuggingFaceTB/SmolLM2-135M")  # doctest: +SKIP
    >>> neighbors = ChunkNeighbors(collection, tokenizer)  # doctest: +SKIP
    >>> Trainer(model, arguments, train_dataset=neighbors.add_to(blocks)).train()  # doctest: +SKIP
    >>> model.generate(**inputs, retrieve=neighbors)  # doctest: +SKIP

    Args:
        config: The configuration of the new layers, which contains that of the backbone.
        backbone: A causal model with decoder layers and a key-value cache, used as it is; None makes one.
    Source: Borgeaud et al. 2022, "Improving language models by retrieving from trillions of tokens".
    """

    config_class = RetroConfig
    new_part = "retro"
    trained_by = "transformers.Trainer"

    def __init__(self, config: RetroConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.backbone = backbone_of(cast(Any, config.backbone), backbone)
        config.backbone = self.backbone.config
        layers = _decoder_layers(self.backbone)
        self.retro = RetroLayers(config, cast(nn.Embedding, self.backbone.get_input_embeddings()).embedding_dim)
        for number, layer in enumerate(config.layers or ()):
            layers[layer - 1].register_forward_hook(partial(self._read_neighbors, number))
        if config.freeze_base:
            self.backbone.requires_grad_(False)
        self.post_init()

    @classmethod
    def from_base(
        cls, base: PreTrainedModel | str | PathLike, *, backbone_kwargs: dict[str, Any] | None = None, **config: Any
    ) -> Self:
        """Give a causal model, which is used without a copy, or that of a name or path, layers that read neighbours.

        Args:
            backbone_kwargs: Passed to `AutoModelForCausalLM.from_pretrained` if `base` is a name or a path.
            config: Fields of `RetroConfig`; with a name or a path also `LOADING_ARGUMENTS`, such as `dtype`.
        """
        fields, loading = split_fields(RetroConfig, config, _FIELDS)
        loading |= backbone_kwargs or {}
        check_loading(loading, base)
        base = load_base(base, loading)
        known = {"base_model_name_or_path": base.name_or_path or None, "base_hash": _hash(base), "dtype": base.dtype}
        model = cls(RetroConfig(backbone=copy.deepcopy(base.config), **known, **fields), backbone=base)
        place_new_part(model, base, "retro")
        model.generation_config = copy.deepcopy(base.generation_config)
        return model.train(base.training)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        neighbor_ids: Tensor | None = None,
        neighbor_mask: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Any:
        """Compute what the backbone computes, with the neighbours of the text's chunks.

        Args:
            attention_mask: (batch, time), 0 at padding on either side.
            neighbor_ids: (batch, chunks, k, length), those of each row's chunks from its first token on, with a cache
                too. They may be fewer than the chunks; those of a chunk that is not whole are not read. None: none.
            neighbor_mask: Of the same shape, 0 at padding and where a neighbour is missing; None: all are there.
        Raises:
            ValueError: If neighbours have another shape or other ids, or are of fewer chunks than a text that is
                trained on, or the cache was filled without them.
        """
        if labels is None and kwargs.get("shift_labels") is None:
            num_items_in_batch = None  # Trainer smooths labels itself, and leaves the count
        reading = memory = None
        if neighbor_ids is not None:
            memory = None if past_key_values is None else _memory_of(past_key_values)
            text = check_shapes(input_ids, inputs_embeds)
            reading = self._reading(text, attention_mask, neighbor_ids, neighbor_mask, memory)
            if self.training and labels is not None:
                self._check_chunks(text, attention_mask, neighbor_ids.shape[1])
        elif self.training and labels is not None and not any(p.requires_grad for p in self.backbone.parameters()):
            raise ValueError(
                "the new layers are trained with neighbor_ids, and there are none; see ChunkNeighbors.add_to"
            )
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        given |= {"past_key_values": past_key_values, "inputs_embeds": inputs_embeds, "labels": labels}
        token = _READING.set(reading)
        try:
            outputs = self.backbone(**backbone_inputs(**given, num_items_in_batch=num_items_in_batch), **kwargs)
        finally:
            _READING.reset(token)
        if memory is not None and past_key_values is not None and memory not in past_key_values.layers:
            past_key_values.layers.append(memory)  # after those that the backbone has made
        return outputs

    def _reading(
        self, text: Tensor, mask: Any, ids: Tensor, keep: Tensor | None, memory: RetroMemory | None
    ) -> Reading:
        keep, most = torch.ones_like(ids) if keep is None else keep, self.config.neighbor_length
        is_whole = ids.ndim == 4 and len(ids) == len(text) and ids.shape[2] and 1 <= ids.shape[3] <= most
        if not is_whole or keep.shape != ids.shape:
            raise ValueError(
                f"neighbor_ids and neighbor_mask must be ({len(text)}, chunks, k, length), with a length of 1 to "
                f"{most}, got {tuple(ids.shape)} and {tuple(keep.shape)}"
            )
        if ids.numel():
            check_ids(ids, num_rows(self.get_input_embeddings()), "neighbor_ids")
        if mask is None or mask.ndim != 2:
            past = 0 if memory is None else memory.get_seq_length()
            mask = torch.ones(len(text), past + text.shape[1], device=text.device)
        return Reading(self, ids, keep.bool(), mask.bool(), memory)

    def _check_chunks(self, text: Tensor, mask: Any, count: int) -> None:
        """Raise an error if neighbours are of fewer chunks than a text: of longer ones, they tell what is to come."""
        size, length = self.config.chunk_length, text.shape[1]
        if count < length // size and mask is not None and mask.ndim == 2:
            length = int(mask.sum(dim=1).max())
        if count < length // size:
            raise ValueError(
                f"the text has {length // size} whole chunks of chunk_length={size} tokens, and neighbor_ids are of "
                f"{count}; ChunkNeighbors(..., chunk_length={size}) finds one for each"
            )

    def _read_neighbors(self, number: int, layer: nn.Module, args: Any, output: Any) -> Any:
        """Return the output of a chosen layer with what neighbours add: a hook of that layer."""
        reading = _READING.get()
        if reading is None or reading.owner is not self:
            return None
        hidden = output if isinstance(output, Tensor) else output[0]
        embed = self.get_input_embeddings()
        hidden = self.retro(number, hidden, reading, lambda ids: embed(ids))  # accelerate would move the module itself
        return hidden if isinstance(output, Tensor) else (hidden, *output[1:])

    def generate(self, *args: Any, retrieve: Retrieve | None = None, **kwargs: Any) -> Any:
        """Generate as `GenerationMixin` does, with neighbours of each chunk as soon as it is full.

        Args:
            retrieve: A `ChunkNeighbors`, or a function from chunks, lists of m ids each, to the neighbours of each, as
                lists of ids. None: only those in `neighbor_ids`, if it is given.
        """
        check_prompt_mask(args[0] if args else None, kwargs)
        written = None if retrieve is None else partial(written_neighbors, found={}, retrieve=retrieve)
        return super().generate(*args, **backbone_inputs(written=written), **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

    def _supports_logits_to_keep(self) -> bool:
        return cast(Any, self.backbone)._supports_logits_to_keep()

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *, written: Any = None, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Prepare the inputs of a step of `generate` as the backbone does, with the neighbours of full chunks."""
        inputs = inputs_of_step(self.backbone, input_ids, inputs_embeds, **kwargs)
        sizes = {"size": self.config.chunk_length, "length": self.config.neighbor_length}
        return inputs if written is None else inputs | written(input_ids, kwargs.get("attention_mask"), **sizes)

    def save_pretrained(
        self, save_directory: str | PathLike, *args: Any, retro_only: bool = False, **kwargs: Any
    ) -> None:
        """Save the model, or with `retro_only` the new layers alone, with the name of their base and a hash of it."""
        if retro_only:
            if not self.config.base_model_name_or_path or self.config.base_hash != _hash(self.backbone):
                raise ValueError("retro_only=True needs a base with a name that was not trained; save the whole model")
            kwargs["state_dict"] = {f"retro.{name}": part for name, part in self.retro.state_dict().items()}
        self.config.retro_only = retro_only
        try:
            super().save_pretrained(save_directory, *args, **kwargs)
        finally:
            self.config.retro_only = False

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | PathLike, *args: Any, **kwargs: Any) -> Any:
        """Load a model, or new layers alone and their base, which `base_model_name_or_path=` may name anew."""
        name, hub = pretrained_model_name_or_path, {key: kwargs[key] for key in HUB_ARGUMENTS if key in kwargs}
        values, _ = PreTrainedConfig.get_config_dict(name, **hub)
        if not values.get("retro_only"):
            loaded = super().from_pretrained(name, *args, **kwargs)
            whole = loaded[0] if isinstance(loaded, tuple) else loaded
            if whole.config.freeze_base:
                whole.backbone.requires_grad_(False)  # loaded weights are new parameters
            return loaded
        base = kwargs.pop("base_model_name_or_path", None) or values["base_model_name_or_path"]
        kwargs = {key: kwargs[key] for key in kwargs if key not in ("revision", "subfolder", *_OF_AUTO)}
        model = cls.from_base(base, **{key: values[key] for key in _FIELDS if key in values}, **kwargs)
        if None not in (model.config.base_hash, values["base_hash"]) and model.config.base_hash != values["base_hash"]:
            raise ValueError(f"{name} was made for another base than {base}; give its base_model_name_or_path")
        file = Path(str(cached_file(name, "model.safetensors", **hub)))
        state = {key.removeprefix("retro."): part for key, part in read_tensors(file).items()}
        check_tensors(file, state, {key: part.shape for key, part in model.retro.state_dict().items()})
        model.retro.load_state_dict(state)
        return model.eval()

    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, ZeroInitLinear):
            return super()._init_weights(module)
        init.zeros_(module.weight)


def _hash(base: PreTrainedModel) -> str | None:
    """Return a hash of weights that they have in bfloat16, too; None if they cannot all be read."""
    return weight_hash(base, settings=False, rounded_to=torch.bfloat16) if is_readable(base) else None


def _decoder_layers(backbone: PreTrainedModel) -> nn.ModuleList:
    """Return the layers of a causal model, the first list of as many modules as its configuration says."""
    depth = backbone.config.get_text_config().num_hidden_layers
    lists = (part for part in backbone.base_model.modules() if isinstance(part, nn.ModuleList) and len(part) == depth)
    layers = next(lists, None)
    if (
        layers is None
        or backbone.config.is_encoder_decoder
        or not cast(Any, backbone)._supports_default_dynamic_cache()
    ):
        name = type(backbone).__name__
        raise ValueError(f"{name} has no list of {depth} decoder layers with a key-value cache; choose another base")
    return layers


def _memory_of(cache: Cache) -> RetroMemory:
    """Return the layer of a cache that holds what neighbours need, or a new one."""
    if not isinstance(cache, DynamicCache) or cache.offloading:
        raise ValueError(f"neighbours need a DynamicCache in memory, got {type(cache).__name__}")
    memory = next((layer for layer in cache.layers if isinstance(layer, RetroMemory)), RetroMemory())
    if memory.get_seq_length() != cache.get_seq_length():
        raise ValueError(
            f"the cache holds {cache.get_seq_length()} positions, {memory.get_seq_length()} of them read with "
            "neighbours; give an empty DynamicCache() and neighbor_ids from the first call on"
        )
    return memory
