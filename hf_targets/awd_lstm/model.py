"""The AWD-LSTM language model: LSTM layers, an output matrix tied to the embeddings, and the loss that regularises."""

from typing import Any, cast

from torch import Tensor, nn
from transformers import GenerationMixin

from hf_targets.awd_lstm.backbone import AwdLstmModel, AwdLstmPreTrainedModel
from hf_targets.awd_lstm.configuration import AwdLstmConfig
from hf_targets.backbones.alignment import steps_into_sequence
from hf_targets.backbones.call import Call
from hf_targets.backbones.causal_head import CausalHead
from hf_targets.maths.losses import IGNORED


class AwdLstmForCausalLM(CausalHead, AwdLstmPreTrainedModel, GenerationMixin):
    """An LSTM language model with dropped recurrent weights.

    Its cache is the state of its layers, of constant size however long the text is. `torch.compile` breaks its graph at
    each layer. It cannot take back tokens, so that assisted generation is refused.

    In training `loss_parts` has `activation` and `temporal` beside `next_token`; their weights are
    `config.activation_weight` and `config.temporal_weight`.

    Source: Merity et al., "Regularizing and Optimizing LSTM Language Models"; salesforce/awd-lstm-lm.
    Departs: The published program divides these two parts by positions, (batch x time) and (batch x (time - 1)).
        Divided by targets, like the cross-entropy, the parts of several batches add up to those of one large batch.
    """

    def __init__(self, config: AwdLstmConfig) -> None:
        super().__init__(config)
        self.model = AwdLstmModel(config)
        self.lm_head = nn.Linear(config.layer_sizes[-1][1], config.vocab_size)
        self.post_init()

    def _other_parts(self, outputs: Any, call: Call) -> dict[str, tuple[float, Tensor]]:
        if not self.training:
            return {}
        config, targets = cast(AwdLstmConfig, self.config), cast(Tensor, call.targets)
        count, scored = call.count(targets), targets != IGNORED
        rows, time = targets.shape
        steps = steps_into_sequence(rows, time, call.attention_mask, call.position_ids, targets.device)
        squares = outputs.last_hidden_state.float().square().mean(dim=-1)
        changes = outputs.undropped[:, 1:].float().sub(outputs.undropped[:, :-1].float()).square().mean(dim=-1)
        follows = scored[:, 1:] & (steps[:, 1:] > 0)
        return {
            "activation": (config.activation_weight, squares.masked_fill(~scored, 0.0).sum() / count),
            "temporal": (config.temporal_weight, changes.masked_fill(~follows, 0.0).sum() / count),
        }
