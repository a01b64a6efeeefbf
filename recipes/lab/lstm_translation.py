"""An LSTM that translates: an encoder and a decoder of AWD-LSTM's layers, and attention from the one to the other."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForSeq2SeqLM, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from hf_targets import AwdLstmConfig
from hf_targets.awd_lstm.backbone import AwdLstmModel, AwdLstmPreTrainedModel
from hf_targets.maths.losses import IGNORED


class LstmTranslationConfig(AwdLstmConfig):
    """Configuration of `LstmForTranslation`: the encoder and the decoder are each as an `AwdLstmConfig` says."""

    model_type = "lstm_translation"
    is_encoder_decoder: bool = True
    use_cache: bool = False
    decoder_start_token_id: int | None = None


class LstmForTranslation(AwdLstmPreTrainedModel, GenerationMixin):
    """LSTMs with attention (Luong et al. 2015, the general score), whose embeddings and output matrix are one.

    Source: Gao et al. 2019, section 3.1, which looks at the embeddings of such a model.
    Departs: Wu et al. 2016, which is cited there, has residual layers, a first layer of both directions and attention
        below the layers. Here attention is above them, each step of the decoder also reads the mean of the encoder's
        states, and there is no cache: a step of `generate` reads the whole translation again.
    """

    config_class: Any = LstmTranslationConfig
    _tied_weights_keys = {  # noqa: RUF012, as the base class has it
        name: "encoder.embed_tokens.weight" for name in ("decoder.embed_tokens.weight", "lm_head.weight")
    }

    def __init__(self, config: LstmTranslationConfig) -> None:
        super().__init__(config)
        width, size = config.layer_sizes[-1][1], config.embedding_size
        self.encoder, self.decoder = AwdLstmModel(config), AwdLstmModel(config)
        self.summary, self.key = nn.Linear(width, size, bias=False), nn.Linear(width, width, bias=False)
        self.joined, self.lm_head = nn.Linear(2 * width, width), nn.Linear(width, config.vocab_size, bias=False)
        self.post_init()
        with torch.no_grad():  # Departs: AWD-LSTM's embeddings begin in +-0.1, with which Adam stays on a plateau.
            self.encoder.embed_tokens.weight.mul_(4)

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of both texts."""
        return self.encoder.embed_tokens

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return labels (batch, time) one position on, behind the token that begins a translation."""
        start = torch.full_like(labels[:, :1], self.config.decoder_start_token_id)
        return torch.cat([start, labels[:, :-1]], dim=1).masked_fill(labels == IGNORED, self.config.pad_token_id)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        labels: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        **_: Any,  # what `generate` gives to any model, such as `use_cache`
    ) -> Seq2SeqLMOutput:
        """Return the logits (batch, time, V) of a translation, and with labels (batch, time) their mean loss."""
        if decoder_input_ids is None:
            assert labels is not None
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        encoded: Any = self.encoder(input_ids, attention_mask) if encoder_outputs is None else encoder_outputs
        states = encoded[0]
        mask = torch.ones_like(states[..., 0]) if attention_mask is None else attention_mask.to(states.dtype)
        mean = (states * mask[..., None]).sum(dim=1, keepdim=True) / mask.sum(dim=1)[:, None, None]
        inputs = self.decoder.embed_tokens(decoder_input_ids) + self.summary(mean)
        read = self.decoder(inputs_embeds=inputs)[0]
        found = F.scaled_dot_product_attention(read, self.key(states), states, mask.bool()[:, None], scale=1.0)
        logits = self.lm_head(torch.tanh(self.joined(torch.cat([found, read], dim=-1))))
        loss = None if labels is None else F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        return Seq2SeqLMOutput(loss=loss, logits=logits, encoder_last_hidden_state=states)


AutoConfig.register(LstmTranslationConfig.model_type, LstmTranslationConfig, exist_ok=True)
AutoModelForSeq2SeqLM.register(LstmTranslationConfig, LstmForTranslation, exist_ok=True)
