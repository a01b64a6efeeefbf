"""The encoder that embeds a phrase: a causal Transformer and a projection of its last token's hidden state."""

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.weight_access import call_inside, execution_device, gathered, num_rows
from hf_targets.phrases.configuration import DynamicVocabConfig
from hf_targets.phrases.inputs import check_windows
from hf_targets.positions import max_positions


def _projection(kind: str, width: int, out: int) -> nn.Module:
    if kind == "linear":
        return nn.Linear(width, out)
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, out))


class PhraseEncoder(nn.Module):
    """Embed phrases, given as prefixes of windows: one causal pass over a window embeds all of its prefixes.

    e(w_1 ... w_s) = MLP(h_s), h_s the last hidden state at the phrase's last token, which has read w_1 ... w_s alone.

    A module of its own, so that peft can train it through `modules_to_save=["phrase_encoder"]`.

    Args:
        config: With the encoder's own configuration inside.
        input_dim: Width of the backbone's input embedding.
        output_dim: Width of the backbone's output embedding.
        transformer: A causal Transformer without its output embedding, used as it is; a new one without it.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 2.2.
    """

    def __init__(
        self, config: DynamicVocabConfig, input_dim: int, output_dim: int, transformer: PreTrainedModel | None = None
    ) -> None:
        super().__init__()
        assert isinstance(config.phrase_encoder, PreTrainedConfig)
        self.transformer = AutoModel.from_config(config.phrase_encoder) if transformer is None else transformer
        width = config.phrase_encoder_width or config.phrase_encoder.get_text_config().hidden_size
        if config.tie_phrase_embeddings and input_dim != output_dim:
            raise ValueError(
                f"one embedding of a phrase for input and output needs both to have one width, and the backbone's have "
                f"{input_dim} and {output_dim}; set tie_phrase_embeddings=False"
            )
        self.widths = (input_dim, output_dim)
        self.max_tokens = max_positions(config.phrase_encoder)
        self.input_projection = _projection(config.projection, width, input_dim)
        self.output_projection = (
            None if config.tie_phrase_embeddings else _projection(config.projection, width, output_dim)
        )

    def forward(self, windows: Tensor, phrase_windows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings of phrases for the backbone's input and for its output.

        Args:
            windows: (windows, length), token ids, padded on the right with any of them.
            phrase_windows: (phrases, 2): phrase p is the first `phrase_windows[p, 1]` tokens of window
                `phrase_windows[p, 0]`.
        Returns: (phrases, d) twice; one tensor where they are tied.
        Raises:
            ValueError: If a phrase is not in its window.
        """
        check_windows(windows, phrase_windows)
        states: Tensor = self.transformer(input_ids=windows, use_cache=False)[0]
        last = states[phrase_windows[:, 0], phrase_windows[:, 1] - 1]
        embeddings = self.input_projection(last)
        return embeddings, embeddings if self.output_projection is None else self.output_projection(last)

    @torch.no_grad()
    def fit_scale(self, inputs: nn.Embedding, outputs: nn.Linear) -> None:
        """Scale the projections so that phrases of random tokens are as large as tokens are.

        Args:
            inputs: The backbone's input embedding.
            outputs: Its output embedding.
        """
        generator, device = torch.Generator().manual_seed(0), execution_device(self)
        windows = torch.randint(num_rows(inputs), (32, 4), generator=generator).to(device)
        rows = torch.arange(32, device=device)
        lengths = rows % 3 + 2
        with without_dropout(self), gathered(self):
            phrases = self(windows, torch.stack([rows, lengths], dim=1))
        for projection, phrase, token in zip(
            (self.input_projection, self.output_projection), phrases, (inputs, outputs), strict=True
        ):
            if projection is None:
                continue
            last = projection[-1] if isinstance(projection, nn.Sequential) else projection
            assert isinstance(last, nn.Linear)
            size = call_inside(token, lambda weight, _: weight.float().square().mean().sqrt())
            scale = (size / phrase.float().square().mean().sqrt()).to(last.weight.device)
            last.weight.mul_(scale)
            last.bias.mul_(scale)


@torch.no_grad()
def check_causal(transformer: PreTrainedModel) -> int:
    """Return the width of the encoder's hidden states, once it is certain that it does not see the tokens to come.

    Raises:
        ValueError: If a token's hidden state changes with the tokens after it: prefixes would not embed as phrases do.
    """
    with without_dropout(transformer), gathered(transformer):
        window = torch.tensor([[1, 2, 3, 4]], device=execution_device(transformer))
        whole = transformer(input_ids=window, use_cache=False)[0]
        prefix = transformer(input_ids=window[:, :2], use_cache=False)[0]
    rounding = max(2.0**-8, 4 * torch.finfo(prefix.dtype).eps)  # new weights hardly look at other tokens
    if not torch.allclose(
        whole[:, :2].float(), prefix.float(), rtol=rounding, atol=rounding * float(prefix.float().std())
    ):
        raise ValueError(
            f"{type(transformer).__name__} is not causal: the hidden state of a prefix changes with what follows it. "
            "The phrase encoder embeds all prefixes of a window in one pass; give a causal language model"
        )
    return whole.shape[-1]
