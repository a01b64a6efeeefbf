"""What all models with future-token heads share: heads on a backbone."""

import copy
from os import PathLike
from typing import Any, ClassVar, Self

from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import initialization as init

from hf_targets.backbones.fingerprint import Fingerprint
from hf_targets.backbones.new_parts import ZeroInitLinear
from hf_targets.backbones.output_matrix import output_embedding
from hf_targets.backbones.weight_access import num_rows
from hf_targets.backbones.wrapping import (
    WrapsBackbone,
    backbone_of,
    check_loading,
    load_base,
    place_new_part,
    split_fields,
)
from hf_targets.multitoken.checkpoint import CheckpointMixin
from hf_targets.multitoken.configuration import MultiTokenConfig
from hf_targets.multitoken.heads import FutureHeads


class MultiTokenModel(WrapsBackbone, CheckpointMixin, PreTrainedModel):
    """A language model with heads, which predict further tokens than the model itself does.

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
    heads_class: ClassVar[type[FutureHeads]] = FutureHeads
    new_part = "heads"
    trained_by = "MultiTokenTrainer"
    smooths_labels = True  # forward takes `label_smoothing`

    def __init__(self, config: MultiTokenConfig, backbone: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        self.backbone = backbone_of(config.backbone, backbone, self.auto_class)
        scale = self._output_scale(self.backbone)
        if scale is not None:
            config.output_scale = scale
        config.backbone = self.backbone.config
        output = self.get_output_embeddings()
        self.heads = self.heads_class(config, width=output.in_features, vocab_size=num_rows(output))
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
        config, loading = split_fields(cls.config_class, config, cls.base_fields)
        loading |= backbone_kwargs or {}
        check_loading(loading, base)
        base = load_base(base, loading, auto_class=cls.auto_class)
        if isinstance(base, MultiTokenModel):
            raise ValueError("the base model has future-token heads already; give its `.backbone` for new ones")
        known = {"base_model_name_or_path": base.name_or_path or None, "dtype": base.dtype, **config}
        # A copy, as a composite configuration resets the attention implementation of its sub-configuration.
        config_class: Any = cls.config_class
        model = cls(config_class(backbone=copy.deepcopy(base.config), **known), backbone=base)
        model.base_fingerprint = Fingerprint.of(base)
        place_new_part(model, base, "heads")
        model.heads.copy_outputs(output_embedding(base))
        if model.can_generate():
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
        return super().resize_token_embeddings(*args, **kwargs)
