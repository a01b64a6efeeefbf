"""What all models with heads share: they are put on a backbone, and predict tokens after the next one."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPast

from hf_targets.backbones.call import Call
from hf_targets.backbones.inputs import check_nll_weights
from hf_targets.backbones.new_parts import ZeroInitLinear
from hf_targets.backbones.output_matrix import OutputMap, output_embedding
from hf_targets.backbones.weight_access import embedding_rows, num_rows
from hf_targets.backbones.wrapping import (
    WrapsBackbone,
    backbone_of,
    check_loading,
    is_trained,
    load_base,
    place_new_part,
    split_fields,
)
from hf_targets.maths.losses import ngram_weights
from hf_targets.multitoken.checkpoint import CheckpointMixin, how_loaded, identity_of
from hf_targets.multitoken.configuration import MultiTokenConfig, base_fields
from hf_targets.multitoken.future import Future, Known, Scoring, predict
from hf_targets.multitoken.heads import ConjugateFactors, FutureHeads, Head
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache, cache_of_text
from hf_targets.multitoken.mtp import MtpHead, MtpHeads, Reading


class MultiTokenModel(WrapsBackbone, CheckpointMixin, PreTrainedModel):
    """A language model with heads, which predict further tokens than the model itself does.

    Args:
        config: The configuration of the heads, which contains that of the backbone.
        backbone: The model to wrap, used as it is; None makes one with random weights.
    Raises:
        ValueError: If the backbone is of another kind, or its logits are not its output embedding applied to its last
            hidden states, times a scale, with a bias and a soft cap.
    """

    config_class = MultiTokenConfig
    auto_class: ClassVar[Any] = AutoModelForCausalLM
    """The Auto class of the backbone."""
    new_part = "heads"
    trained_by = "MultiTokenTrainer"
    smooths_labels = True  # forward takes `label_smoothing`

    def __init__(self, config: MultiTokenConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.backbone = backbone_of(cast(Any, config.backbone), backbone, self.auto_class)
        scale = self._output_scale(self.backbone)
        if scale is not None:
            config.output_scale = scale
        config.backbone = self.backbone.config
        output = self.get_output_embeddings()
        heads_class = partial(MtpHeads, backbone=self.backbone) if config.head == "mtp" else FutureHeads
        self.heads = heads_class(config, width=output.in_features, vocab_size=num_rows(output))
        self.post_init()

    @classmethod
    def _output_scale(cls, backbone: PreTrainedModel) -> float | None:
        """Return the backbone's output scale, or None if its weights cannot be tried; raise an error if it has none."""
        raise NotImplementedError

    @classmethod
    def from_base(
        cls,
        base: PreTrainedModel | str | PathLike,
        *,
        backbone_kwargs: dict[str, Any] | None = None,
        **config: Any,
    ) -> Self:
        """Put new heads on a language model.

        Args:
            base: A model, used as it is and not copied, or the name or path of one.
            backbone_kwargs: Passed to `from_pretrained` of the Auto class where `base` is a name or a path.
            config: Fields of the configuration: `ngram_size`, `target`, `loss_weight`, `head` ... If `base` is a name
                or a path, also `dtype`, `device_map`, `attn_implementation` and the other `LOADING_ARGUMENTS`, which
                `backbone_kwargs` may hold instead.
        Raises:
            ValueError: If a field is unknown or out of range, or if the model has no output embedding, already has
                heads, or cannot share its output matrix.
        """
        config, loading = split_fields(cls.config_class, config, base_fields(cls.config_class))
        loading |= backbone_kwargs or {}
        check_loading(loading, base)
        base = load_base(base, loading, auto_class=cls.auto_class)
        if isinstance(base, MultiTokenModel):
            raise ValueError("the base model has future-token heads already; give its `.backbone` for new ones")
        known = {"base_model_name_or_path": base.name_or_path or None, "dtype": base.dtype}
        known |= {"residual_heads": is_trained(base), **config, "base_loading": how_loaded(base, loading)}
        # A copy, as a composite configuration resets the attention implementation of its sub-configuration.
        config_class: Any = cls.config_class
        model = cls(config_class(backbone=copy.deepcopy(base.config), **known), backbone=base)
        model.base_identity = identity_of(base)
        place_new_part(model, base, "heads")
        model.heads.copy_outputs(output_embedding(base))
        if model.can_generate():
            model.generation_config = copy.deepcopy(base.generation_config)
        return model.train(base.training)

    def _read(self, call: Call, weight: float | None, stored: Tensor | None = None) -> Any:
        """Check a call, and return the outputs of the backbone.

        Args:
            weight: Lambda; above 0 the cache must hold hidden states of earlier positions.
            stored: The last hidden states (batch, time, d), if they are known.
        """
        call.check_ids(num_rows(self.get_output_embeddings()))
        if weight and call.past_key_values is not None:
            own = cache_of_text(call.past_key_values)
            HiddenStateCache.check(own)
            if call.targets is not None and own.get_seq_length():
                raise ValueError(
                    f"an ensemble scores labels of whole sequences only, got {own.get_seq_length()} positions in a "
                    "cache; leave out past_key_values or labels"
                )
        if stored is None:
            return call.read(self.backbone)
        if call.tokens is None or call.past_key_values is not None or stored.shape[:-1] != call.tokens.shape:
            raise ValueError(
                "last_hidden_state must be that of input_ids (batch, time) without a cache, got shape "
                f"{tuple(stored.shape)}; leave out inputs_embeds and past_key_values"
            )
        return BaseModelOutputWithPast(last_hidden_state=stored)  # pyright: ignore[reportArgumentType]

    def _predict(
        self, call: Call, outputs: Any, weight: float | None, label_smoothing: float, *, heads_alone: bool
    ) -> Future:
        """Return what the heads predict of a call; nothing if there are neither labels nor an ensemble."""
        config, targets = cast(MultiTokenConfig, self.config), call.targets
        if targets is None and not weight:
            return Future()
        mtp = config.head == "mtp"
        if (mtp or config.target == "difference") and call.tokens is None:
            raise ValueError(
                'heads with target="difference" or head="mtp" need token ids, as they read earlier tokens beside the '
                "hidden state; give input_ids (to a decoder decoder_input_ids) instead of embeddings"
            )
        cache, window = outputs.get("past_key_values") if weight else None, None if mtp else config.ngram_size - 1
        known = Known.of(call, outputs[0], None if cache is None else cache_of_text(cache), window)
        if mtp:
            known = replace(known, reading=Reading.of(self.backbone, known.tokens, known.steps))
        scoring, output = None, OutputMap.of(self.backbone, config.output_scale)
        if targets is not None:
            weights = ngram_weights(config.ngram_size - 1, config.loss_weight)
            scoring = Scoring(targets, [0.0, *weights[1:]] if heads_alone else weights, label_smoothing, output.cap)
        return predict(self.heads, output, known, scoring)

    def _call(
        self,
        call: Call,
        weight: float | None,
        *,
        nll_weights: Sequence[float] | None,
        skip_logits: bool | None,
        output_last_hidden_state: bool,
        last_hidden_state: Tensor | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the outputs of the backbone, and those of the model by their names."""
        check_nll_weights(nll_weights, has_labels=call.targets is not None)
        label_smoothing: float = call.others.pop("label_smoothing", 0.0)
        outputs = self._read(call, weight, last_hidden_state)
        hidden: Tensor = outputs[0]
        heads_alone = last_hidden_state is not None
        future = self._predict(call, outputs, weight, label_smoothing, heads_alone=heads_alone)
        output, targets = OutputMap.of(self.backbone, self.config.output_scale), call.targets
        own: dict[str, Any] = {"past_key_values": outputs.get("past_key_values")}
        if targets is not None and future.loss is not None:
            count = call.count(targets)
            own["loss"] = future.loss / count
            sums = {f"head_{n}" if n else "next_token": part for n, part in enumerate(future.sums)}
            own["loss_parts"] = {name: part / count for name, part in sums.items() if part is not None}
            own["nlls"] = None if nll_weights is None else future.nlls(output, hidden, targets, nll_weights)
        if call.wants_logits(skip_logits, training=self.training):
            own["logits"] = output(future.mixed(hidden, weight)[:, call.kept])
        if output_last_hidden_state:
            own["last_hidden_state"] = hidden
        return outputs, own

    @property
    def sequential(self) -> bool:
        """Whether a head needs the tokens before its own, as heads that predict word differences do."""
        return self.config.target == "difference" or self.config.head == "mtp"

    def future_states(self, hidden: Tensor, count: int) -> Tensor:
        """Return the states that heads 1 to `count` compute from hidden states (rows, d), (rows, count, d)."""
        return self.heads.states(hidden, count)

    def future_logits(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return head n's logits of drafted tokens from its states (rows, d) and the n tokens before, (rows, n)."""
        output, n = OutputMap.of(self.backbone, self.config.output_scale), tokens.shape[1]
        rows = embedding_rows(output.layer, tokens) if self.sequential else None
        return self.heads.draft_logits(n, output, self.heads.complete(n, states, rows))

    def parallel_logits(self, states: Tensor) -> Tensor:
        """Return all heads' logits of drafted tokens at once, (rows, count, ...), if they are not `sequential`."""
        output = OutputMap.of(self.backbone, self.config.output_scale)
        if self.heads.outputs is None:
            return self.heads.draft_logits(1, output, states)
        logits = [self.heads.draft_logits(n + 1, output, states[:, n]) for n in range(states.shape[1])]
        return torch.stack(logits, dim=1)

    def whole_logits(self, logits: Tensor) -> Tensor:
        """Return the logits of all tokens from those of the tokens that heads may draft."""
        drafted = self.heads.draft_vocabulary
        return logits if drafted is None else drafted.whole(logits, num_rows(self.get_output_embeddings()))

    def drafted_ids(self, places: Tensor) -> Tensor:
        """Return the ids of tokens from their places among the tokens that heads may draft."""
        drafted = self.heads.draft_vocabulary
        return places if drafted is None else drafted.ids.to(places.device)[places]

    def _init_weights(self, module: nn.Module) -> None:
        if self.config.head == "mtp" and not isinstance(module, Head | ConjugateFactors):
            return self.backbone._init_weights(module)  # which knows its layers and norms
        # Departs: residual heads begin at 0; the paper's begin at random, on a model that is trained together with them
        if isinstance(module, Head) and self.config.residual_heads:
            if isinstance(module, MtpHead):
                return module.begin()
            module = module.last_layer
        elif not isinstance(module, ZeroInitLinear | ConjugateFactors):
            return super()._init_weights(module)
        for parameter in module.parameters():
            init.zeros_(parameter)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the backbone's vocabulary; heads that share its output matrix need no change.

        Raises:
            ValueError: If the heads have output matrices of their own, or draft tokens that would be dropped.
        """
        if self.heads.outputs is not None and (args or kwargs):
            raise ValueError("separate_output_heads cannot be resized; resize the base model, and put new heads on it")
        size, drafted = args[0] if args else kwargs.get("new_num_tokens"), self.heads.draft_vocabulary
        if drafted is not None and size is not None and size <= int(drafted.ids.max()):
            raise ValueError(
                f"the heads draft tokens up to {int(drafted.ids.max())}, which a vocabulary of {size} drops; put new "
                "heads on the resized base model"
            )
        return super().resize_token_embeddings(*args, **kwargs)
