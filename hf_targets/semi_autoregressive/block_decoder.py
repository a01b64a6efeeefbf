"""The LSTM that turns a hidden state into predictions of the next N words."""

from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from hf_targets.backbones.new_parts import ZeroInitLinear
from hf_targets.curves.configuration import CurveConfig
from hf_targets.curves.k_curves import CurveMixture
from hf_targets.curves.sentence_curve import SentenceCurve
from hf_targets.semi_autoregressive.configuration import SemiAutoregressiveConfig


class BlockDecoder(GradientCheckpointingLayer):
    """Predicts the embeddings of the next N words from one hidden state, without reading any of these words.

    The hidden state is the first state of a one-layer LSTM, and is added to what it gives. Its steps are the words, or
    with a curve the control points, whose curve passes through the words' embeddings. With K > 1 curves the LSTM runs K
    times, each time after a token of the curve, and a network weighs the K results.

    With `residual` the sum is added to the hidden state behind a layer that begins as 0: a new decoder gives each word
    the backbone's prediction of the first.

    Args:
        config: `ngram_size`, `curve` and `residual`.
        width: Width of the hidden states and embeddings.
    Source: Heo and Choi, "Sentence Curve Language Models", appendix B.3 and figure 7. The paper does not say how the
        hidden state comes in, and what the LSTM reads: ours reads a learnt embedding of each step, and its cell begins
        with 0.
    """

    def __init__(self, config: SemiAutoregressiveConfig, width: int) -> None:
        super().__init__()
        curve = cast(CurveConfig | None, config.curve)
        self.num_words = config.ngram_size
        self.curve = None if curve is None else SentenceCurve(curve)
        self.curves = CurveMixture.of(curve, width)
        num_steps = self.num_words if curve is None else curve.num_control_points_for(self.num_words)
        self.steps = nn.Parameter(torch.empty(num_steps, width))
        self.lstm = nn.LSTM(width, width, batch_first=True)
        # Departs: the paper names no sum and no layer behind the LSTM. Without the sum, the first state is forgotten
        # after a few of 18 steps; what an LSTM gives lies in (-1, 1), and embeddings do not
        self.project_out = (ZeroInitLinear if config.residual else nn.Linear)(width, width)
        self.residual = config.residual
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the embeddings of the steps at random; the layers initialise themselves."""
        init.normal_(self.steps, std=0.02)

    def forward(self, hidden: Tensor, count: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the predicted embeddings of words 1 to `count`, and the probabilities of K > 1 curves.

        Args:
            hidden: (rows, d), last hidden states.
            count: In [1, N]; None: N.
        Returns: (rows, count, d), and (rows, K) or None.
        """
        count = self.num_words if count is None else count
        # words do not depend on later ones, but all points of a curve belong to each word
        steps = self.steps[:count] if self.curve is None else self.steps
        inputs, state, probabilities = steps.to(hidden.dtype).expand(hidden.shape[0], -1, -1), hidden, None
        if self.curves is not None:
            inputs, state = self.curves(inputs), hidden.repeat_interleave(self.curves.num_curves, dim=0)
        states = self._run(inputs, state)
        if self.curves is not None:
            states, probabilities = self.curves.select(states)
        if self.curve is not None:
            states = self.curve.to_embeddings(states, self.num_words)[:, :count]
        # after the curve, where there are fewer rows: columns of B sum to 1, so it is the same as before the curve
        words = self.project_out(states + hidden[:, None])
        # Departs: the paper trains from random weights; on a trained backbone the decoder would have to learn its
        # prediction of the next word anew (SmolLM2: 3.6 nats, a new decoder 11.9)
        return (hidden[:, None] + words if self.residual else words), probabilities

    def _run(self, inputs: Tensor, state: Tensor) -> Tensor:
        if state.shape[0] == 0:
            return inputs  # no LSTM of torch takes an empty batch
        on_cpu = inputs.device.type == "cpu"  # where processors without bfloat16 have no LSTM for autocast
        with torch.autocast("cpu", enabled=False) if on_cpu else nullcontext():
            if on_cpu:
                inputs, state = (tensor.to(self.steps.dtype) for tensor in (inputs, state))
            if torch.compiler.is_exporting():  # torch's LSTM exports for one number of rows alone
                return self._unrolled(inputs, state)
            state = state[None].contiguous()
            return self.lstm(inputs, (state, torch.zeros_like(state)))[0]

    def _unrolled(self, inputs: Tensor, state: Tensor) -> Tensor:
        cell, states = torch.zeros_like(state), []
        for step in inputs.unbind(1):
            state, cell = torch.lstm_cell(step, (state, cell), *self.lstm.all_weights[0])
            states.append(state)
        return torch.stack(states, dim=1)
