"""Decoders that a recipe can make anew, by name: which configuration each has at the size that the settings give."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, ReformerConfig
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.leaks import LEAKY_SUFFIX
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.training.recipe_settings import ModelSizeSettings, field_of

ATTENTIONS = ("lsh", "local")
CHUNK_LENGTH, NUM_HASHES = 64, 4
"""Of a Reformer whose settings do not give them."""
_OWNERS = {
    "head_size": ("tensorized", "reformer"),
    "paper_leaky": ("tensorized",),
    **dict.fromkeys(("attention_layers", "chunk_length", "num_hashes"), ("reformer",)),
}
"""Settings of some architectures only."""


@dataclass
class DecoderSettings(ModelSizeSettings):
    """The architecture and the size of a decoder that is made anew."""

    architecture: str = field(
        default="gpt2",
        metadata={"help": "Decoder: gpt2, tensorized (Tensorized Transformer) or reformer (Reformer of Transformers)."},
    )
    num_heads: int = field_of(
        ModelSizeSettings, "num_heads", note="A Tensorized Transformer has so many core tensors in place of heads."
    )
    feed_forward_size: int = field(default=2100, metadata={"help": "Width of the feed-forward layers, d_ff."})
    tied: bool = field(
        default=True, metadata={"help": "One embedding for input and output; else two. A Reformer always has two."}
    )
    head_size: int | None = field(
        default=None,
        metadata={
            "help": "Width of a head in a Tensorized Transformer (its rank R) and a Reformer. None: 40 for the first, "
            "hidden_size / num_heads for the second."
        },
    )
    paper_leaky: bool | None = field(
        default=None,
        metadata={
            "help": "True: a Tensorized Transformer as published, whose positions read later tokens; its perplexities "
            "are not comparable. None and False: the causal one."
        },
    )
    attention_layers: list[str] | None = field(
        default=None,
        metadata={"help": "Attention of a Reformer's layers, lsh or local, repeated over the layers. None: lsh."},
    )
    chunk_length: int | None = field(
        default=None, metadata={"help": "Tokens in a chunk of a Reformer's attention. None: 64."}
    )
    num_hashes: int | None = field(
        default=None, metadata={"help": "Rounds of hashing in a Reformer's lsh layers. None: 4."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.architecture not in _MAKERS:
            raise ValueError(f"architecture must be one of {', '.join(_MAKERS)}, got {self.architecture}")
        for name in ("feed_forward_size", "chunk_length", "num_hashes", "head_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        for name, owners in _OWNERS.items():
            if getattr(self, name) is not None and self.architecture not in owners:
                raise ValueError(
                    f"{name} is of architecture {' and '.join(owners)}, got it with {self.architecture}; leave it out"
                )
        if self.attention_layers is not None and (
            not self.attention_layers or {*self.attention_layers} - {*ATTENTIONS}
        ):
            raise ValueError(f"attention_layers must be of {' and '.join(ATTENTIONS)}, got {self.attention_layers}")

    def check_block_size(self, block_size: int, ngram_sizes: Sequence[int] = ()) -> None:
        """Check that a decoder of these settings reads blocks of this size without padding, and predicts N tokens.

        Raises:
            ValueError: If a Reformer's chunks do not divide them, or no position has N tokens after it.
        """
        if ngram_sizes and (longest := max(ngram_sizes)) >= block_size:
            raise ValueError(
                f"N must be below block_size, {block_size}, else the last head has no target, got ngram_sizes with "
                f"{longest}; lower N, or take longer blocks"
            )
        chunk = self.chunk_length or CHUNK_LENGTH
        if self.architecture == "reformer" and block_size > chunk and block_size % chunk:
            raise ValueError(
                f"block_size must be a multiple of a Reformer's chunk_length {chunk}, else every block is "
                f"padded to one, got {block_size}; choose another of the two"
            )

    def row_name(self, name: str) -> str:
        """Return the name of a row of a table, marked if the model reads what it predicts."""
        return name + LEAKY_SUFFIX if self.paper_leaky else name

    def note(self) -> str:
        """Return what a reader of the results must know of the architecture, in Markdown; empty if there is nothing."""
        if self.paper_leaky:
            return (
                "**Leaky**: the models have the published attention, in which each position reads later tokens of its "
                "segment, those that it predicts among them. Do not compare these figures with those of causal models."
            )
        if self.architecture == "reformer" and "lsh" in (self.attention_layers or ["lsh"]):
            return (
                "Evaluations hash with fixed seeds. After loading the plain model, call "
                "`hf_targets.repair_reformer(model)`: without it, Transformers draws new hashes for each call. A "
                "Reformer's hashes sort whole blocks, so later tokens have a part in which earlier ones a position "
                "reads: its perplexities are not strictly those of predicting one token after the other."
            )
        return ""

    def new_decoder(self, vocab_size: int, num_positions: int) -> PreTrainedModel:
        """Return an untrained model that reads texts of up to `num_positions` tokens."""
        return repair_reformer(AutoModelForCausalLM.from_config(self.decoder_config(vocab_size, num_positions)))

    def decoder_config(self, vocab_size: int, num_positions: int) -> PreTrainedConfig:
        """Return the configuration of the decoder.

        Raises:
            ValueError: If no architecture of the name is registered with Transformers, or the sizes do not fit it.
        """
        self.check_block_size(num_positions)
        return _MAKERS[self.architecture](self, vocab_size, num_positions)


def _gpt2(settings: DecoderSettings, vocab_size: int, num_positions: int) -> PreTrainedConfig:
    return settings.gpt2_config(
        vocab_size=vocab_size,
        num_positions=num_positions,
        n_inner=settings.feed_forward_size,
        tie_word_embeddings=settings.tied,
    )


def _tensorized(settings: DecoderSettings, vocab_size: int, num_positions: int) -> PreTrainedConfig:
    sizes: dict[str, Any] = {} if settings.head_size is None else {"head_dim": settings.head_size}
    return AutoConfig.for_model(
        "tensorized_transformer",
        vocab_size=vocab_size,
        hidden_size=settings.hidden_size,
        intermediate_size=settings.feed_forward_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        segment_length=num_positions,
        dropout=settings.dropout,
        paper_leaky=bool(settings.paper_leaky),
        tie_word_embeddings=settings.tied,
        **sizes,
    )


def _reformer(settings: DecoderSettings, vocab_size: int, num_positions: int) -> PreTrainedConfig:
    kinds, chunk = settings.attention_layers or ["lsh"], settings.chunk_length or CHUNK_LENGTH
    repeats = -(-settings.num_layers // len(kinds))
    return ReformerConfig(
        vocab_size=vocab_size,
        hidden_size=settings.hidden_size,
        num_attention_heads=settings.num_heads,
        attention_head_size=settings.head_size or settings.hidden_size // settings.num_heads,
        attn_layers=(kinds * repeats)[: settings.num_layers],
        feed_forward_size=settings.feed_forward_size,
        lsh_attn_chunk_length=chunk,
        local_attn_chunk_length=chunk,
        num_hashes=settings.num_hashes or NUM_HASHES,
        max_position_embeddings=num_positions,
        axial_pos_embds=False,
        hidden_dropout_prob=settings.dropout,
        lsh_attention_probs_dropout_prob=settings.dropout,
        local_attention_probs_dropout_prob=settings.dropout,
        is_decoder=True,
        use_cache=False,
        pad_token_id=0,  # masked wherever it is read
        eos_token_id=None,
    )


_MAKERS: dict[str, Callable[[DecoderSettings, int, int], PreTrainedConfig]] = {
    "gpt2": _gpt2,
    "tensorized": _tensorized,
    "reformer": _reformer,
}
