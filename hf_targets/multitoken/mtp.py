"""Multi-token prediction: heads that are decoder layers of the backbone's own class, each after the one before."""

import copy
import inspect
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel
from transformers import initialization as init
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.maths.differences import reconstruction_conjugates
from hf_targets.multitoken.heads import FutureHeads, Head


def native_config(backbone: PreTrainedModel, depths: int) -> Any:
    """Return the backbone's configuration with what Transformers reads about as many layers as there are heads.

    Attention is full if the backbone has a layer of that type, else of the type of the last layer.
    """
    config: Any = copy.deepcopy(backbone.config)
    of_text = config.get_text_config(decoder=True)
    of_text.num_mtp_layers = depths
    for name in ("layer_types", "mlp_layer_types"):
        types = getattr(of_text, name, None)
        if types is not None and getattr(of_text, f"mtp_{name}", None) is None:
            setattr(of_text, f"mtp_{name}", ["full_attention" if "full_attention" in types else types[-1]] * depths)
    if not hasattr(of_text, "rms_norm_eps"):
        of_text.rms_norm_eps = epsilon_of(layer_and_norm(backbone)[1])
    return config


def layer_and_norm(backbone: PreTrainedModel) -> tuple[nn.Module, nn.Module]:
    """Return a backbone's last decoder layer and the first norm in it; raise ValueError if they cannot be found."""
    layers, embedding = getattr(backbone.get_decoder(), "layers", None), backbone.get_input_embeddings()
    width: int = backbone.config.get_text_config(decoder=True).hidden_size
    if isinstance(layers, nn.ModuleList) and len(layers) and getattr(embedding, "embedding_dim", width) == width:
        takes_cache = "past_key_values" in inspect.signature(type(layers[-1]).forward).parameters
        norm = next((part for name, part in layers[-1].named_modules() if "norm" in name), None)
        if takes_cache and norm is not None and epsilon_of(norm) is not None:
            return layers[-1], norm
    raise ValueError(
        f'head="mtp" is a layer of the backbone\'s own class, and {type(backbone).__name__} exposes no list `layers` '
        'of decoder layers with norms, which read its embeddings and a cache; choose another head, as "conditional"'
    )


def epsilon_of(norm: nn.Module) -> float | None:
    """Return the epsilon of a norm; None if it has none."""
    return next((getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name)), None)


@dataclass(frozen=True)
class Reading:
    """What heads of this kind read beside hidden states.

    Attributes:
        embeds: (batch, time, d), input embeddings of all tokens.
        steps: (batch, time), steps into the sequence; -1 where nothing is known.
        rotary: What makes rotary embeddings in the backbone; None: it has none.
        cache: Keys and values of earlier positions, one layer a head; None: all positions are read.
    """

    embeds: Tensor
    steps: Tensor
    rotary: nn.Module | None
    cache: Cache | None = None

    @classmethod
    def of(cls, backbone: PreTrainedModel, tokens: Tensor, steps: Tensor, cache: Cache | None = None) -> Self:
        """Return what heads read of tokens (batch, time); their embeddings get no gradient from it.

        Departs: DeepSeek-V3 trains the shared embeddings through the modules too; ours stay what the model reads, as
            the conjugates of word differences do.
        """
        with torch.no_grad():
            embeds = backbone.get_input_embeddings()(tokens)
        return cls(embeds, steps, getattr(backbone.get_decoder(), "rotary_emb", None), cache)

    def arguments(self, config: Any, n: int, hidden: Tensor) -> dict[str, Any]:
        """Return the arguments of head n's layer for its last positions, as many as `hidden` (batch, time, d) has."""
        steps = self.steps if self.cache is not None else self.steps[:, : hidden.shape[1]]
        queries, kinds = steps[:, -hidden.shape[1] :].clamp(min=0), getattr(config, "layer_types", None)
        kind = None if kinds is None else kinds[n - 1]
        positions = queries + n  # of the token that is read beside the hidden state
        made: dict[str, Any] = {"position_ids": positions, "past_key_values": self.cache}
        if self.rotary is not None:
            rope = getattr(config, "rope_parameters", None) or {}
            typed = {"layer_type": kind} if any(isinstance(part, dict) for part in rope.values()) else {}  # Gemma 3
            made["position_embeddings"] = self.rotary(hidden, position_ids=positions, **typed)
        if "flash" in (config._attn_implementation or ""):
            known = steps >= 0
            return {**made, "attention_mask": None if known.all() else known.long()}
        at = torch.arange(steps.shape[1], device=steps.device)
        own = at[-hidden.shape[1] :, None]
        seen = (at <= own) & (at >= own - queries[..., None])
        if kind == "sliding_attention":
            seen &= at > own - config.sliding_window
        blocked = torch.zeros(seen.shape, dtype=hidden.dtype, device=hidden.device)
        return {**made, "attention_mask": blocked.masked_fill(~seen, torch.finfo(hidden.dtype).min)[:, None]}


class MtpHead(Head):
    """Norms of a hidden state and of a token's embedding, a projection of both, a decoder layer, and a norm.

    Its parts have the names of Transformers' `MtpLayer`, and the classes of the backbone's `layer` and `norm`.
    """

    adds_input = True

    def __init__(self, config: Any, index: int, layer: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.config, width, norm_class = config, config.hidden_size, partial(type(norm), eps=epsilon_of(norm))
        self.enorm, self.hnorm = norm_class(width), norm_class(width)
        self.eh_proj = nn.Linear(2 * width, width, bias=False)
        self.mtp_block = type(layer)(config, index)
        self.post_norm = norm_class(width)

    def begin(self) -> None:
        """Begin by reading the hidden state alone: the loss falls fastest then."""
        init.zeros_(self.last_layer.weight)
        width = len(self.eh_proj.weight)
        init.copy_(self.eh_proj.weight, torch.eye(width, 2 * width).roll(width, dims=1))

    def forward(self, hidden: Tensor, embeds: Tensor, **arguments: Any) -> Tensor:
        """Map hidden states and embeddings (batch, time, d) to predicted embeddings or differences (batch, time, d)."""
        joined = torch.cat([self.enorm(embeds), self.hnorm(hidden)], dim=-1)
        read = self.mtp_block(self.eh_proj(joined), **arguments)
        return self.post_norm(read[0] if isinstance(read, tuple) else read)


class MtpHeads(FutureHeads):
    """Heads of multi-token prediction: head n reads what head n - 1 computed, and the n-th next token.

    At position i head n predicts token i + 1 + n, of all positions up to i; n is DeepSeek-V3's depth k.

    Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 2.2.
    """

    def __init__(
        self, config: PreTrainedConfig, width: int, vocab_size: int | None = None, *, backbone: PreTrainedModel
    ) -> None:
        layer, norm = layer_and_norm(backbone)
        count = config.num_future_heads
        of_layers = native_config(backbone, count).get_mtp_config()
        super().__init__(config, width, vocab_size, [MtpHead(of_layers, n, layer, norm) for n in range(count)])

    def depth(self, n: int, hidden: Tensor, reading: Reading) -> Tensor:
        """Return what head n computes from states of the head before (batch, time, d), before a conjugate is added."""
        head: Any = self.layers[n - 1]
        embeds = reading.embeds[:, n : n + hidden.shape[1]] if reading.cache is None else reading.embeds
        return head(hidden, embeds, **reading.arguments(head.config, n, hidden))

    def forward(
        self, hidden: Tensor, tokens: Tensor | None, past: int = 0, *, reading: Reading | None = None
    ) -> list[Tensor]:
        """Return predictions as `FutureHeads.forward` does; all cached positions are read again."""
        assert reading is not None
        time, predictions, state = hidden.shape[1], [], hidden
        for n in range(1, len(self) + 1):
            state, first = state[:, : max(time - n, 0)], max(past - n, 0)
            if state.shape[1]:
                state = self.depth(n, state, reading)
            predicted = state[:, first:]
            if self.differences and predicted.shape[1]:
                assert tokens is not None
                predicted = self._with_conjugate(n, predicted, reconstruction_conjugates(tokens[:, first:], n))
            predictions.append(predicted)
        return predictions
