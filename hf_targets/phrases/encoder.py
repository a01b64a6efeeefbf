"""The encoder that embeds phrases: a causal Transformer, and a projection of the last token's hidden state."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedModel
from transformers.activations import NewGELUActivation
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.inputs import check_integers, check_range
from hf_targets.backbones.positions import max_positions
from hf_targets.backbones.weight_access import call_inside, execution_device, gathered, num_rows
from hf_targets.backbones.wrapping import backbone_of
from hf_targets.data.progress import progress
from hf_targets.maths.trie import longest_beginning_with
from hf_targets.phrases.configuration import DynamicVocabConfig

CPU_TOKENS, ACCELERATOR_TOKENS = 2**10, 2**14  # on a CPU the activations of larger batches leave the caches


# Departs: the paper's untrained phrases are random vectors without a bias. In front of a trained model these take most
# of the probability. With these biases SmolLM2 gives .2% to 1,204 phrases together (recipes/phrases.md).
START_BIAS, TOKEN_BIAS = -4.0, -3.0  # of each untrained phrase, and of each of its tokens after the first


def _projection(kind: str, width: int, out: int) -> nn.Module:
    if kind == "linear":
        return nn.Linear(width, out)
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, out))


class PhraseEncoder(nn.Module):
    """The phrase encoder. Phrases are prefixes of windows: one causal pass over a window embeds all of its prefixes.

    e(w_1 ... w_s) = MLP(h_s), where h_s is the last layer's hidden state at the phrase's last token, or with
    `phrase_encoder_kind="mean"` the mean of the embeddings of w_1 ... w_s.

    With `phrase_start="tokens"` the logit of a phrase of n tokens is h . (e_1 + e) + b_1 + b + (n - 1) `TOKEN_BIAS`,
    where e_1 and b_1 are the output embedding and the bias of its first token, and (e, b) is the encoder's part, which
    begins at (0, `START_BIAS`). The model reads a phrase as the encoder's part plus the input embedding of its last
    token.

    It is a separate module, so that peft can train it through `modules_to_save=["phrase_encoder"]`.

    Args:
        config: The model's configuration, with the encoder's own configuration inside.
        input_dim, output_dim: Widths of the backbone's input and output embedding.
        transformer: A causal Transformer without its output embedding, used without a copy, with `fuse_gelu`; None: a
            new one, if the kind of the encoder has one.
    Raises:
        ValueError: If `config.tie_phrase_embeddings` is set and the two widths differ.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 2.2.
    """

    def __init__(
        self, config: DynamicVocabConfig, input_dim: int, output_dim: int, transformer: PreTrainedModel | None = None
    ) -> None:
        super().__init__()
        self.transformer: PreTrainedModel | None = None
        self.max_tokens, width = None, input_dim
        if config.phrase_encoder_kind == "transformer":
            assert isinstance(config.phrase_encoder, PreTrainedConfig)
            self.transformer = backbone_of(config.phrase_encoder, transformer, AutoModel)
            fuse_gelu(self.transformer)  # a third of the time of GPT-2's layers in bfloat16 on a CPU
            self.max_tokens = max_positions(config.phrase_encoder)
            width = config.phrase_encoder_width or config.phrase_encoder.get_text_config().hidden_size
        if config.tie_phrase_embeddings and input_dim != output_dim:
            raise ValueError(
                f"tie_phrase_embeddings needs input and output embeddings of the same width, and the backbone's have "
                f"{input_dim} and {output_dim}; set tie_phrase_embeddings=False"
            )
        tied, self.starts_as_tokens = config.tie_phrase_embeddings, config.phrase_start == "tokens"
        with_bias = output_dim + self.starts_as_tokens
        self.widths = (input_dim, with_bias)
        self.has_one_table = tied and not self.starts_as_tokens
        self.input_projection = _projection(config.projection, width, with_bias if tied else input_dim)
        self.output_projection = None if tied else _projection(config.projection, width, with_bias)

    def forward(
        self, windows: Tensor, phrase_windows: Tensor, embeds: Tensor | None = None, firsts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the embeddings of phrases for the backbone's input and for its output.

        Args:
            windows: (windows, length), token ids, padded on the right with any token id.
            phrase_windows: (phrases, 2): phrase p is the first `phrase_windows[p, 1]` tokens of window
                `phrase_windows[p, 0]`.
            embeds: (windows, length, input_dim), the backbone's embeddings of the tokens; only for an encoder that is
                made of them (`DynamicVocabConfig.reads_tokens`).
            firsts: (windows, output_dim + 1), the output embedding and bias of the first token of each window; only
                with `phrase_start="tokens"`.
        Returns: Two tensors, (phrases, input_dim) and (phrases, output_dim), or with `phrase_start="tokens"` (phrases,
            output_dim + 1), the last column a bias; the same tensor if they are tied and have no bias.
        """
        check_windows(windows, phrase_windows)
        row, last = phrase_windows[:, 0], phrase_windows[:, 1] - 1
        if self.transformer is not None:
            states: Tensor = self.transformer(input_ids=windows, use_cache=False)[0]
        else:
            assert embeds is not None
            states = _running_mean(embeds)
        inputs = self.input_projection(states[row, last])
        outputs = inputs if self.output_projection is None else self.output_projection(states[row, last])
        if not self.starts_as_tokens:
            return inputs, outputs
        assert embeds is not None and firsts is not None
        by_length = F.pad(TOKEN_BIAS * last[:, None].to(outputs.dtype), (outputs.shape[1] - 1, 0))
        return inputs[:, : self.widths[0]] + embeds[row, last], outputs + firsts[row] + by_length

    @torch.no_grad()
    def fit_start(self, embed: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], inputs: Any, outputs: Any) -> None:
        """Scale the projections of a new encoder: embeddings of random phrases are as large as tokens' (mean square).

        With `phrase_start="tokens"` the projections become 0 instead, and the bias of phrases `START_BIAS`.

        Args:
            embed: `embed_phrases` of the model.
            inputs, outputs: The backbone's input and output embedding.
        """
        projections: list[Any] = [self.input_projection, self.output_projection]
        lasts: list[Any] = [
            one[-1] if isinstance(one, nn.Sequential) else one for one in projections if one is not None
        ]
        if self.starts_as_tokens:
            for last in lasts:
                last.weight.zero_()
                last.bias.zero_()
            lasts[-1].bias[-1] = START_BIAS
            return
        generator, device = torch.Generator().manual_seed(0), execution_device(self)
        windows = torch.randint(num_rows(inputs), (32, 4), generator=generator).to(device)
        rows = torch.arange(32, device=device)
        lengths = rows % 3 + 2
        with without_dropout(self), gathered(self):
            phrases = embed(windows, torch.stack([rows, lengths], dim=1))
        for last, phrase, token in zip(lasts, phrases, (inputs, outputs), strict=False):
            size = call_inside(token, lambda weight, _: weight.float().square().mean().sqrt())
            scale = (size / phrase.float().square().mean().sqrt()).to(last.weight.device)
            last.weight.mul_(scale)
            last.bias.mul_(scale)


@torch.no_grad()
def check_causal(transformer: PreTrainedModel) -> int:
    """Check that a Transformer's hidden states depend on no later token, and return their width."""
    with without_dropout(transformer), gathered(transformer):
        window = torch.tensor([[1, 2, 3, 4]], device=execution_device(transformer))
        whole = transformer(input_ids=window, use_cache=False)[0]
        prefix = transformer(input_ids=window[:, :2], use_cache=False)[0]
    rounding = max(2.0**-8, 4 * torch.finfo(prefix.dtype).eps)  # small, as new weights react little to other tokens
    if not torch.allclose(
        whole[:, :2].float(), prefix.float(), rtol=rounding, atol=rounding * float(prefix.float().std())
    ):
        raise ValueError(
            f"{type(transformer).__name__} is not causal: its hidden states depend on later tokens; give a causal "
            "language model as the phrase encoder"
        )
    return whole.shape[-1]


@torch.no_grad()
def first_layers(transformer: PreTrainedModel, count: int) -> PreTrainedModel:
    """Return a copy of the first `count` layers of a Transformer, with what lies below and above its layers."""
    config = copy.deepcopy(transformer.config)
    total = config.num_hidden_layers
    if type(count) is not int or count > total:
        raise ValueError(f"phrase_encoder_layers must be an integer, at most {total} of this model, got {count!r}")
    for name, value in config.to_dict().items():
        if isinstance(value, list) and len(value) == total:  # such as the kind of attention of each layer
            setattr(config, name, value[:count])
    config.num_hidden_layers = count
    try:
        config = type(config).from_dict(config.to_dict())  # as it is loaded
        cut = cast(Any, type(transformer))._from_config(config, dtype=transformer.dtype)
        weights = transformer.state_dict()
        cut.load_state_dict({name: weights[name] for name in cut.state_dict()})
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"{type(transformer).__name__} cannot be cut to its first layers; leave out phrase_encoder_layers, or give "
            "phrase_encoder= a model of the size you want"
        ) from error
    return cut.to(transformer.device).train(transformer.training)


def _running_mean(embeds: Tensor) -> Tensor:
    """Return the mean of each window's embeddings up to each token, normalised, of the same shape (windows, length, d).

    Embeddings of trained models are small, and a projection of small vectors learns slowly.
    """
    counts = torch.arange(1, embeds.shape[1] + 1, device=embeds.device, dtype=embeds.dtype)
    return F.layer_norm(embeds.cumsum(dim=1) / counts[:, None], embeds.shape[-1:])


def fuse_gelu(model: nn.Module) -> None:
    """Let a model compute `gelu_new`, GPT-2's activation, by torch's one kernel in place of eight operations.

    Results are equal up to rounding, which is once instead of eight times in half precision.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is NewGELUActivation:
                setattr(module, name, nn.GELU(approximate="tanh"))


def check_windows(windows: Tensor, phrase_windows: Tensor) -> None:
    """Check that each phrase is a prefix of a window; `PhraseEncoder.forward` gives the shapes."""
    check_integers(windows=windows, phrase_windows=phrase_windows)
    if windows.dim() != 2 or phrase_windows.shape[1:] != (2,):
        shapes = f"{tuple(windows.shape)} and {tuple(phrase_windows.shape)}"
        raise ValueError(f"windows must be (windows, length) and phrase_windows (phrases, 2), got {shapes}")
    check_range(phrase_windows[:, 0], len(windows), "phrase_windows must name windows")
    check_range(phrase_windows[:, 1], windows.shape[1] + 1, "phrase_windows must have lengths", start=1)


def encode(model: Any, keys: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """Return the input and output embeddings of phrases, (phrases, width) each.

    Args:
        model: A `DynamicVocabForCausalLM`.
        keys: For each phrase, at least one, the bytes of its int64 token ids.
    """
    device = execution_device(model.phrase_encoder)
    parts, order = [], []
    max_tokens = CPU_TOKENS if device.type == "cpu" else ACCELERATOR_TOKENS
    with progress(len(keys), "encoding phrases", unit="phrase") as bar:
        for windows, phrase_windows, phrases in plan_windows(keys, max_tokens=max_tokens):
            parts.append(model.embed_phrases(windows.to(device), phrase_windows.to(device)))
            order += phrases
            bar.update(len(phrases))
    back = torch.tensor(order).argsort().to(device)
    inputs = torch.cat([part[0] for part in parts])[back]
    if parts[0][0] is parts[0][1]:
        return inputs, inputs
    return inputs, torch.cat([part[1] for part in parts])[back]


def plan_windows(keys: Sequence[bytes], *, max_tokens: int = CPU_TOKENS) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    """Yield batches of windows that embed every phrase once. The windows of a batch have one length, without padding.

    A phrase needs a window of its own only if it does not begin another phrase.

    Args:
        keys: As for `encode`; distinct.
        max_tokens: The largest number of tokens in a batch. A longer window is a batch of its own.
    Returns: Of each batch the two arguments of `PhraseEncoder.forward`, and the numbers of its phrases.

    >>> from array import array
    >>> phrases = [array("q", ids).tobytes() for ids in ([5, 6], [5, 6, 7], [8, 9])]
    >>> [(windows.tolist(), places.tolist(), numbers) for windows, places, numbers in plan_windows(phrases)]
    [([[8, 9]], [[0, 2]], [2]), ([[5, 6, 7]], [[0, 2], [0, 3]], [0, 1])]
    """
    members: dict[int, list[int]] = defaultdict(list)  # the phrases in a window, by the phrase that fills it
    for number, window in enumerate(longest_beginning_with(keys)):
        members[window].append(number)
    by_length: dict[int, list[int]] = defaultdict(list)
    for window in members:
        by_length[len(keys[window]) // 8].append(window)
    for length, windows in sorted(by_length.items()):
        size = max(1, max_tokens // length)
        for group in (windows[start : start + size] for start in range(0, len(windows), size)):
            ids = torch.frombuffer(bytearray(b"".join(keys[window] for window in group)), dtype=torch.int64)
            phrases = [(row, number) for row, window in enumerate(group) for number in members[window]]
            places = torch.tensor([(row, len(keys[number]) // 8) for row, number in phrases])
            yield ids.view(-1, length), places, [number for _, number in phrases]
