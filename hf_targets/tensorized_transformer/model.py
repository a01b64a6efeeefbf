"""The Tensorized Transformer as a causal language model: layers, and an output matrix tied to the embeddings."""

import logging
from typing import Any, cast

from torch import Tensor, nn
from transformers import GenerationMixin

from hf_targets.backbones.causal_head import CausalHead
from hf_targets.tensorized_transformer.backbone import (
    TensorizedTransformerModel,
    TensorizedTransformerPreTrainedModel,
)
from hf_targets.tensorized_transformer.configuration import TensorizedTransformerConfig

logger = logging.getLogger(__name__)


class TensorizedTransformerForCausalLM(CausalHead, TensorizedTransformerPreTrainedModel, GenerationMixin):
    """A language model whose attention is a product of queries, keys and values without a softmax.

    Each layer reads the last `config.segment_length` positions, in texts of any length, and its cache holds no more.
    With `config.paper_leaky` it is the published model, which reads the tokens that it predicts: it does not generate,
    and its perplexities are not comparable with those of causal models.

    Source: Ma et al., "A Tensorized Transformer for Language Modeling"; szhangtju/The-compression-of-Transformer.
    Departs: Causal by default, see `attention.TensorizedAttention`.
    """

    def __init__(self, config: TensorizedTransformerConfig) -> None:
        super().__init__(config)
        self.model = TensorizedTransformerModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()
        if config.paper_leaky:
            logger.warning(
                "With paper_leaky=True a Tensorized Transformer reads the tokens that it predicts: do not compare its "
                "perplexities with those of causal models, and set paper_leaky=False to generate"
            )

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Prepare the inputs of a step of generation, also for a model around this one; not if `paper_leaky`."""
        if cast(TensorizedTransformerConfig, self.config).paper_leaky:
            raise ValueError(
                "a model with paper_leaky=True reads the tokens that follow, and cannot generate what is not written "
                "yet; train one with paper_leaky=False"
            )
        return super().prepare_inputs_for_generation(  # pyright: ignore[reportAttributeAccessIssue]
            input_ids, *args, inputs_embeds=inputs_embeds, **kwargs
        )
