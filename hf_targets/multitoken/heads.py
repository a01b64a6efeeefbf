"""Heads: small networks that read a hidden state, and perhaps the conjugate of a word difference."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.configuration_utils import PreTrainedConfig

from hf_targets.backbones.new_parts import ZeroInitLinear
from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.backbones.weight_access import call_inside
from hf_targets.maths.differences import reconstructed_embeddings, reconstruction_conjugates
from hf_targets.multitoken.draft_vocabulary import DraftVocabulary
from hf_targets.registry import Registry


class Head(nn.Module):
    """Base class of a head; a kind derives from it and is made with `width` (d) and `bias`.

    Its `forward(hidden)` maps hidden states (..., d) to predicted embeddings or differences (..., d). A kind that reads
    the conjugate of a word difference has `forward(hidden, conjugate)` instead; its target must be a difference.

    Attributes:
        reads_conjugate: Whether `forward` takes the conjugate.
        adds_input: Whether `forward` adds the hidden states to what it computes.
    """

    reads_conjugate: ClassVar[bool] = False
    adds_input: ClassVar[bool] = False

    @property
    def last_layer(self) -> nn.Linear:
        """The last linear layer; if it is 0, so is what a head computes that does not add its input."""
        return [layer for layer in self.modules() if isinstance(layer, nn.Linear)][-1]


class ConjugateFactors(nn.Module):
    """A learnt factor of the conjugate in each channel: 0 at the start, where the paper has 1.

    Departs: a random head does not cancel the conjugate, which is long where embeddings are those of a trained model,
        as 2^n - 1 of them are added up. Losses then begin far above that of a uniform guess.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, conjugate: Tensor) -> Tensor:
        """Multiply conjugates (..., d)."""
        return self.weight * conjugate


class MlpHead(Head):
    """Two d x d linear layers with ReLU between them: the paper's head, 8.39M parameters at d = 2048.

    Source: Heo et al., equation (4) and appendix A.3.1. The paper gives only parameter counts: they imply that both
        layers have width d, and leave open whether the layers have biases.
    """

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width, bias=bias)
        self.outer = nn.Linear(width, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to predicted embeddings or differences (..., d)."""
        return self.outer(F.relu(self.inner(hidden)))


class MedusaHead(Head):
    """x + SiLU(W x + b), which is the identity before training.

    Source: Cai et al. 2024, "Medusa", section 2.1.1.
    Departs: Medusa initialises b at random; we set it to zero, so that a new head is exactly the identity.
    """

    adds_input = True

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = ZeroInitLinear(width, width, bias=bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to predicted embeddings or differences (..., d)."""
        return hidden + F.silu(self.linear(hidden))


class ConditionalHead(Head):
    """The paper's head applied to hidden state and conjugate: linear layers 2d -> d -> d with ReLU between them.

    Both inputs are first scaled to root mean square 1, as the ratio of their lengths depends on the model.

    Departs: the paper's head reads only the hidden state, and the conjugate is only added to its output. Our head also
        reads the conjugate, as Hydra's draft heads read earlier tokens (Ankner et al. 2024); more drafts are accepted.
    """

    reads_conjugate = True

    def __init__(self, width: int, *, bias: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(2 * width, width, bias=bias)
        self.outer = nn.Linear(width, width, bias=bias)

    def forward(self, hidden: Tensor, conjugate: Tensor) -> Tensor:
        """Map hidden states and conjugates (..., d) to predicted differences (..., d)."""
        read = [F.rms_norm(part, part.shape[-1:]) for part in (hidden, conjugate)]
        return self.outer(F.relu(self.inner(torch.cat(read, dim=-1))))


HEADS: Registry[type[Head]] = Registry("head", Head, reserved=("simple", "wdr", "mtp"))
"""The kinds of heads by the names that `MultiTokenConfig.head` takes; `HEADS.register("mine", Mine)` adds one.

Reserved names stand for a head together with a target (`recipes/lab/draft_heads.py`), or for `MtpHeads`."""

HEADS.register("mlp", MlpHead)
HEADS.register("medusa", MedusaHead)
HEADS.register("conditional", ConditionalHead)


class FutureHeads(nn.Module):
    """Heads 1 to `config.num_future_heads`; `heads[n - 1]` is head n, a `Head`.

    Peft trains it through `modules_to_save=["heads"]`.

    Args:
        config: A `MultiTokenConfig`.
        width: d, the width of the hidden states.
        vocab_size: V, the number of rows of an output matrix; needed only with `separate_output_heads` and
            `draft_vocab_size`.
        layers: The heads; None makes them of `config.head`.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        width: int,
        vocab_size: int | None = None,
        layers: Sequence[Head] | None = None,
    ) -> None:
        super().__init__()
        if layers is None:
            layers = [HEADS[config.head](width, bias=config.head_bias) for _ in range(config.num_future_heads)]
        self.reads_conjugate = layers[0].reads_conjugate
        self.differences = config.target == "difference"
        self.reverse = config.reversed_differences
        self.layers = nn.ModuleList(layers)
        self.residual, self.factors = config.residual_heads, None
        if self.residual and self.differences:
            self.factors = nn.ModuleList(ConjugateFactors(width) for _ in self.layers)
        self.outputs: nn.ModuleList | None = None
        if config.separate_output_heads:
            assert vocab_size is not None, "heads with output matrices of their own need vocab_size"
            self.outputs = nn.ModuleList(nn.Linear(width, vocab_size, bias=False) for _ in self.layers)
        self.draft_vocabulary: DraftVocabulary | None = None
        if config.draft_vocab_size is not None:
            assert vocab_size is not None, "a draft vocabulary needs vocab_size"
            self.draft_vocabulary = DraftVocabulary(config.draft_vocab_size, vocab_size)

    def __len__(self) -> int:
        return len(self.layers)

    def __getitem__(self, index: int) -> nn.Module:
        return self.layers[index]

    @property
    def are_new(self) -> bool:
        """Whether the heads are residual ones that have not been trained."""
        return self.residual and not any(layer.last_layer.weight.any() for layer in self.layers)  # pyright: ignore

    def output(self, n: int, shared: OutputMap) -> OutputMap:
        """Return what turns predictions of head n into logits: the head's own matrix, or `shared`."""
        if self.outputs is None:
            return shared
        layer = self.outputs[n - 1]
        if not isinstance(layer, nn.Linear):
            raise ValueError(
                f"a head's own output layer must be a torch.nn.Linear, got {type(layer).__name__}; with peft "
                "train it whole, by modules_to_save=['heads']"
            )
        return OutputMap(layer, scale=shared.scale, cap=shared.cap)

    def draft_logits(self, n: int, shared: OutputMap, predictions: Tensor) -> Tensor:
        """Return the logits of the tokens that may be drafted, by predictions (..., d) of head n.

        Returns: (..., vocab), or (..., draft_vocab_size) in the order of the draft vocabulary's ids.
        """
        output = self.output(n, shared)
        return (
            output(predictions) if self.draft_vocabulary is None else self.draft_vocabulary.logits(output, predictions)
        )

    @torch.no_grad()
    def copy_outputs(self, shared: nn.Linear) -> None:
        """Copy the weight of `shared`, but not its bias, into the heads' own output matrices, if they have any."""
        for layer in self.outputs or ():
            call_inside(shared, lambda weight, _, own: own.copy_(weight), layer.weight)

    def states(self, hidden: Tensor, count: int) -> Tensor:
        """Return the states that heads 1 to `count` compute from hidden states (rows, d), as (rows, count, d).

        A head that reads the conjugate computes nothing yet: its state is the hidden state.
        """
        return torch.stack([self._without_conjugate(n, hidden) for n in range(1, count + 1)], dim=1)

    def complete(self, n: int, states: Tensor, tokens: Tensor | None) -> Tensor:
        """Return head n's predicted embeddings (rows, d) from its `states` and the n tokens before the predicted one.

        Args:
            tokens: Embeddings (rows, n, d) of those tokens; heads with `target="embedding"` ignore them.
        """
        if tokens is None or not self.differences:
            return states
        return self._with_conjugate(n, states, reconstruction_conjugates(tokens, n)[:, 0])

    def forward(self, hidden: Tensor, tokens: Tensor | None, past: int = 0) -> list[Tensor]:
        """Return the embeddings predicted by heads n = 1 to N - 1 for the targets of positions `past` and later.

        Args:
            hidden: Hidden states (batch, time, d).
            tokens: Embeddings of the tokens at all positions except the first, (batch, time - 1, d); needed only for
                word differences.
            past: Number of first positions that are cached and used only to predict targets of later positions.
        Returns: For head n, predictions made at positions max(past - n, 0) to time - n - 1, (batch, time - max(past,
            n), d): a prediction made at position i is for the target of position i + n. Empty if there are none.
        """
        time, predictions = hidden.shape[1], []
        for n in range(1, len(self) + 1):
            first = max(past - n, 0)
            seen = hidden[:, first : max(time - n, first)]
            predicted = self._without_conjugate(n, seen)
            if self.differences and seen.shape[1]:
                assert tokens is not None
                predicted = self._with_conjugate(n, predicted, reconstruction_conjugates(tokens[:, first:], n))
            predictions.append(predicted)
        return predictions

    def _without_conjugate(self, n: int, hidden: Tensor) -> Tensor:
        """Return the output of head n for hidden states (..., d); if it needs the conjugate, return them unchanged."""
        return hidden if self.reads_conjugate else self._residual(n, hidden, self.layers[n - 1](hidden))

    def _with_conjugate(self, n: int, states: Tensor, conjugate: Tensor) -> Tensor:
        """Return head n's predicted embeddings (..., d), of its word difference and the conjugate."""
        differences = states
        if self.reads_conjugate:
            differences = self._residual(n, states, self.layers[n - 1](states, conjugate))
        if self.factors is not None:
            conjugate = self.factors[n - 1](conjugate)
        return reconstructed_embeddings(differences, conjugate, n, reverse=self.reverse)

    def _residual(self, n: int, hidden: Tensor, computed: Tensor) -> Tensor:
        """Return what head n computed, with the hidden states in it if it is residual, once and as they are predicted.

        A reversed difference of an odd level is subtracted from the conjugate, and so are they.
        """
        if not self.residual:
            return computed
        share = (-1 if self.reverse and n % 2 else 1) - self.layers[n - 1].adds_input  # pyright: ignore
        return computed + share * hidden if share else computed
