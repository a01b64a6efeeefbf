"""What all models with future-token heads share: heads on a backbone, and the loss and logits of a call."""

import copy
from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import Any, ClassVar, Self, cast

from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import initialization as init

from hf_targets.backbones.backbone import output_embedding
from hf_targets.backbones.causal_call import CausalCall
from hf_targets.backbones.fingerprint import Fingerprint
from hf_targets.backbones.inputs import check_nll_weights
from hf_targets.backbones.output_map import OutputMap
from hf_targets.backbones.weight_access import num_rows
from hf_targets.backbones.wrapping import (
    WrapsBackbone,
    check_loading,
    keep_weights,
    load_base,
    place_new_part,
    split_fields,
)
from hf_targets.backbones.zero_init_linear import ZeroInitLinear
from hf_targets.maths.ensemble import mix_predictions
from hf_targets.maths.losses import ngram_weights
from hf_targets.multitoken.checkpoint import CheckpointMixin
from hf_targets.multitoken.configuration import BASE_FIELDS, MultiTokenConfig
from hf_targets.multitoken.future import known_tokens, read_future, score
from hf_targets.multitoken.generation import HeadsGenerationMixin
from hf_targets.multitoken.heads import FutureHeads
from hf_targets.multitoken.hidden_state_cache import HiddenStateCache, cache_of_text


class MultiTokenModel(WrapsBackbone, CheckpointMixin, PreTrainedModel, HeadsGenerationMixin):
    """A language model with N - 1 heads, which predict the second to the N-th next token.

    Args:
        config: The configuration of the heads, which contains that of the backbone.
        backbone: The model to wrap, used as it is; None makes one with random weights.
    Raises:
        ValueError: If the backbone is of another kind, or its logits are not its output embedding applied to its last
            hidden states, times a scale and with a bias.
    """

    config_class = MultiTokenConfig
    auto_class: ClassVar[Any] = AutoModelForCausalLM
    """The Auto class of the backbone."""
    new_part = "heads"
    trained_by = "MultiTokenTrainer"

    def __init__(self, config: MultiTokenConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.backbone = self.auto_class.from_config(config.backbone) if backbone is None else backbone
        scale = self._output_scale(self.backbone)
        if scale is not None:
            config.output_scale = scale
        config.backbone = self.backbone.config
        output = self.get_output_embeddings()
        self.heads = FutureHeads(config, width=output.in_features, vocab_size=num_rows(output))
        if backbone is not None:
            keep_weights(backbone)
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
            config: Fields of `MultiTokenConfig`: `ngram_size`, `target`, `loss_weight`, `ensemble_weight`, `head` ...
                If `base` is a name or a path, also `dtype`, `device_map`, `attn_implementation` and the other
                `LOADING_ARGUMENTS`, which `backbone_kwargs` may hold instead.
        Raises:
            ValueError: If a field is unknown or out of range, or if the model has no output embedding, already has
                heads, or cannot share its output matrix.
        """
        config, loading = split_fields(MultiTokenConfig, config, BASE_FIELDS)
        loading |= backbone_kwargs or {}
        check_loading(loading, base)
        base = load_base(base, loading, auto_class=cls.auto_class)
        if isinstance(base, MultiTokenModel):
            raise ValueError("the base model has future-token heads already; give its `.backbone` for new ones")
        output = output_embedding(base)
        known = {"base_model_name_or_path": base.name_or_path or None, "dtype": base.dtype, **config}
        # A copy, as a composite configuration resets the attention implementation of its sub-configuration.
        config_class: Any = cls.config_class
        model = cls(config_class(backbone=copy.deepcopy(base.config), **known), backbone=base)
        model.base_fingerprint = Fingerprint.of(base)
        place_new_part(model, base, "heads")
        model.heads.copy_outputs(output)
        model.generation_config = copy.deepcopy(base.generation_config)
        return model.train(base.training)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, ZeroInitLinear):
            for parameter in module.parameters():
                init.zeros_(parameter)
        else:
            super()._init_weights(module)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the backbone's vocabulary; heads that share its output matrix need no change.

        Raises:
            ValueError: If the heads have output matrices of their own, or draft tokens that would be dropped.
        """
        if self.heads.outputs is not None and (args or kwargs):
            raise ValueError(
                "heads with separate_output_heads=True cannot be resized; resize the base model, and put new heads on "
                "it with from_base"
            )
        size = args[0] if args else kwargs.get("new_num_tokens")
        if (
            self.heads.draft_vocabulary is not None
            and size is not None
            and size <= int(self.heads.draft_vocabulary.ids.max())
        ):
            raise ValueError(
                f"the heads draft tokens up to {int(self.heads.draft_vocabulary.ids.max())}, which a vocabulary of "
                f"{size} drops; put new heads on the resized base model with from_base"
            )
        return self.backbone.resize_token_embeddings(*args, **kwargs)

    def _call_outputs(
        self,
        call: CausalCall,
        weight: float | None,
        *,
        nll_weights: Sequence[float] | None,
        smoothing: float,
        skip_logits: bool | None,
        output_last_hidden_state: bool,
    ) -> tuple[Any, dict[str, Any]]:
        """Return the outputs of the backbone, and those of this model by their names.

        Args:
            weight: Lambda.
            smoothing: The share of the uniform distribution in the targets of the loss.
        """
        output = OutputMap.of(self.backbone, self.config.output_scale)
        call.check_ids(num_rows(output.layer))
        check_nll_weights(nll_weights, has_labels=call.scored)
        if weight and call.past_key_values is not None:
            own = cache_of_text(call.past_key_values)
            HiddenStateCache.check(own)
            if call.scored and own.get_seq_length():
                raise ValueError(
                    f"an ensemble scores labels of whole sequences only, got {own.get_seq_length()} positions in a "
                    "cache; leave out past_key_values or labels"
                )
        outputs = call.read(self.backbone)
        hidden: Tensor = outputs[0]
        targets = call.targets()
        future, exists, total, sums = [], [], None, []
        if call.scored or weight:
            cache = outputs.get("past_key_values") if weight else None
            known = known_tokens(
                cast(MultiTokenConfig, self.config), call, hidden, None if cache is None else cache_of_text(cache)
            )
            # a single call with a gradient: with several, FSDP may lose the gradient of a tied matrix
            read = partial(read_future, self.heads, output)
            loss_weights = ngram_weights(self.config.ngram_size - 1, self.config.loss_weight)
            future, exists, total, sums = output.inside(read, *known, targets, loss_weights, smoothing)

        loss = loss_parts = nlls = logits = None
        if targets is not None:
            assert total is not None
            count = call.count(targets)
            loss = total / count
            loss_parts = {f"head_{n}" if n else "next_token": part / count for n, part in enumerate(sums)}
            if nll_weights is not None:
                nlls = score(output, hidden, future, exists, targets, nll_weights)
        if call.wants_logits(skip_logits, training=self.training):
            mixed = mix_predictions(hidden, future, exists, weight) if weight else hidden
            logits = output(mixed[:, call.kept])
        return outputs, {
            "loss": loss,
            "loss_parts": loss_parts,
            "logits": logits,
            "nlls": nlls,
            "last_hidden_state": hidden if output_last_hidden_state else None,
            "past_key_values": outputs.get("past_key_values"),
        }
