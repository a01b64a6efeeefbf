"""Networks that samplers can be checked against: tables in float64, and a record of what they were asked."""

from types import SimpleNamespace

import torch

from hf_targets.masked_diffusion.sampling import make_sampler
from hf_targets.masked_diffusion.sampling.canvas import Canvas, fill_canvas, given_canvas
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
from hf_targets.maths.noise import NoiseSchedule

VOCAB, MASK = 7, 6
CPU = torch.device("cpu")
SAMPLERS = {
    "ancestral": {"num_steps": 5},
    "cached": {"num_steps": 5},
    "first_hitting": {},
    "confidence": {"num_steps": 3},
    "entropy_bound": {"entropy_bound": 2.0},
}


class Recorder:
    """Keeps what a denoiser is asked: (canvas, where, attention_mask, timesteps) of each call."""

    def __init__(self):
        self.calls = []

    def log_probabilities(self, canvas, where, *, attention_mask, timesteps):
        mask = None if attention_mask is None else attention_mask.clone()
        self.calls.append((canvas.clone(), where.clone(), mask, timesteps.clone()))
        assert timesteps.shape == canvas.shape[:1]
        assert len(canvas), "a call has a row"
        assert (canvas[where] == MASK).all(), "only masked positions are asked for"
        return self.logits(canvas, timesteps)[where].index_fill(1, torch.tensor([MASK]), -1e6).log_softmax(dim=1)


class Product(Recorder):
    """Fixed distributions, one for each position."""

    def __init__(self, length, seed=0, scale=1.0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = scale * torch.randn(length, VOCAB, generator=generator, dtype=torch.float64)

    def logits(self, canvas, timesteps):
        return self.table[: canvas.shape[1]].expand(len(canvas), -1, -1)

    def probabilities(self):
        return self.table[:, :MASK].softmax(dim=1)


class Reader(Recorder):
    """Each position's distribution depends on the whole canvas of its row, and on the time if so wished."""

    def __init__(self, length, seed=0, *, timed=False):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weights = torch.randn(length, VOCAB, length, VOCAB, generator=generator, dtype=torch.float64)
        self.timed = timed

    def logits(self, canvas, timesteps):
        length = canvas.shape[1]
        read = torch.nn.functional.one_hot(canvas, VOCAB).double()
        logits = torch.einsum("bms,msnv->bnv", read, self.weights[:length, :, :length])
        return logits * (0.2 + timesteps.double())[:, None, None] if self.timed else logits


def sample(denoiser, canvas, sampler="ancestral", *, seed=0, window=64, stride=None, streamer=None, **options):
    """Fill a canvas, or a blank one of a shape (batch, length), with a seed."""
    if not isinstance(canvas, Canvas):
        canvas = canvas_of(torch.zeros(canvas[0], 0).long(), max_length=canvas[1])
    generator = torch.Generator().manual_seed(seed)
    drawing = {key: options.pop(key) for key in ("temperature", "top_p") if key in options}
    schedule = NoiseSchedule(options.pop("schedule", "log_linear"))
    draw = TokenDraw(MASK, CPU, generator=generator, **drawing)
    chosen = make_sampler(sampler, **options)

    def fill(part):
        chosen.fill(part, draw, schedule)

    return fill_canvas(denoiser.log_probabilities, canvas, fill, window=window, stride=stride, streamer=streamer)


def canvas_of(ids, attention_mask=None, max_length=None):
    """The canvas of a list of rows."""
    mask = None if attention_mask is None else torch.tensor(attention_mask)
    config = SimpleNamespace(mask_token_id=MASK, vocab_size=VOCAB)
    return given_canvas(torch.as_tensor(ids), mask, max_length=max_length, config=config, device=CPU)


def chi_square(counts, probabilities):
    """The statistic of counts against probabilities, over its number of degrees of freedom: about 1 if they agree."""
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum() / (counts.numel() - 1))
