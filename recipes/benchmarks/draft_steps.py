"""What drafts cost and bring where a given share of the drafted tokens is accepted, against plain decoding.

    python recipes/benchmarks/draft_steps.py recipes/settings/benchmarks/draft_steps/measured.yaml

The model is made so that no training is needed: its output matrix makes one certain token follow each token, with
layers that add almost nothing. What the heads choose is replaced: with the given probability by the token that follows,
else by another one. Ratios are medians over rounds, without the prompt. Measured: recipes/multitoken.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from copy import copy
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GPTNeoConfig, LlamaConfig

from hf_targets import MultiTokenForCausalLM
from hf_targets.evaluation.timing import settled_time
from lab.settings import parse_settings
from lab.tables import markdown_table

DTYPES = ("float32", "bfloat16")


@dataclass
class Setup:
    """The model, and how it decodes."""

    architecture: Literal["llama", "gpt_neo"] = field(default="llama", metadata={"help": "Of the model."})
    hidden_size: int = field(default=512, metadata={"help": "Width d; a multiple of 64."})
    intermediate_size: int | None = field(default=None, metadata={"help": "Of the feed-forward layers. None: 8/3 d."})
    num_key_value_heads: int | None = field(default=None, metadata={"help": "Of a Llama. None: d / 64."})
    num_layers: int = field(default=8, metadata={"help": "Layers."})
    vocab_size: int = field(default=2048, metadata={"help": "V."})
    ngram_size: int = field(default=4, metadata={"help": "N; N - 1 tokens are drafted."})
    draft_vocab_size: int | None = field(default=None, metadata={"help": "Tokens that heads may draft. None: all."})
    acceptances: list[float] = field(
        default_factory=lambda: [0.0, 0.3, 0.6, 0.9], metadata={"help": "Probabilities that a drafted token is right."}
    )
    batch_sizes: list[int] = field(default_factory=lambda: [1, 8], metadata={"help": "Rows at once."})
    auto: bool = field(default=True, metadata={"help": 'Whether to measure draft_tokens="auto" too.'})
    ensemble_weight: float = field(default=0.2, metadata={"help": "Lambda of the ensemble that is timed."})
    prompt_tokens: int = field(default=32, metadata={"help": "Tokens of each prompt."})
    max_new_tokens: int = field(default=64, metadata={"help": "Tokens to generate for each."})
    rounds: int = field(default=5, metadata={"help": "Timed turns of each way, after one not timed."})
    dtype: Literal["float32", "bfloat16"] | None = field(default=None, metadata={"help": "None: both."})


class CertainModel(MultiTokenForCausalLM):
    """A model with heads whose drafted tokens are right with the probability `acceptance`."""

    acceptance: float
    follower: Tensor

    def future_logits(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the logits of the heads, with the highest one moved to the token that is to be drafted."""
        logits = super().future_logits(states, tokens)
        right = self.follower[tokens[:, -1]]
        wrong = (right + 1) % logits.shape[1]
        hit = torch.rand(len(right), device=right.device) < self.acceptance
        return logits.scatter_(1, torch.where(hit, right, wrong)[:, None], 1e4)


def config_of(setup: Setup) -> Any:
    """Return the configuration of the model to wrap, whose output matrix is its own."""
    ids: Any = {"bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False}
    inner, heads = setup.intermediate_size or setup.hidden_size * 8 // 3, setup.hidden_size // 64
    if setup.architecture == "gpt_neo":
        layers: Any = {
            "num_layers": setup.num_layers,
            "attention_types": [[["global", "local"], setup.num_layers // 2]],
        }
        sizes: Any = {"hidden_size": setup.hidden_size, "intermediate_size": inner, "num_heads": heads, **layers}
        return GPTNeoConfig(vocab_size=setup.vocab_size, **sizes, **ids)
    sizes = {"hidden_size": setup.hidden_size, "intermediate_size": inner, "num_hidden_layers": setup.num_layers}
    heads = {"num_attention_heads": heads, "num_key_value_heads": setup.num_key_value_heads or heads}
    return LlamaConfig(vocab_size=setup.vocab_size, **sizes, **heads, **ids)


def make_model(setup: Setup, dtype: str, device: torch.device) -> CertainModel:
    """Return the model; token x is followed by token `follower[x]`, and a token that is drafted by another such one."""
    torch.manual_seed(0)
    with device:
        base: Any = AutoModelForCausalLM.from_config(config_of(setup), dtype=getattr(torch, dtype))
        drafted = setup.draft_vocab_size or setup.vocab_size
        follower = torch.cat([torch.randperm(drafted), torch.arange(drafted, setup.vocab_size)])
    embeddings, outputs = base.get_input_embeddings().weight, base.get_output_embeddings().weight
    with torch.no_grad():
        for name, matrix in base.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight", "c_proj.weight", "wpe.weight")):
                matrix.mul_(1e-2)  # what layers and positions add
        nn.init.normal_(embeddings)
        outputs[follower] = embeddings
    more: dict[str, Any] = {} if setup.draft_vocab_size is None else {"draft_vocab_size": setup.draft_vocab_size}
    model = CertainModel.from_base(base, ngram_size=setup.ngram_size, target="difference", head="conditional", **more)
    model.follower = follower
    return model.eval()


class Way:
    """A way to decode, and what its rounds took.

    Attributes:
        model: What generates.
        arguments: Passed to its `generate`.
        afresh: Whether what "auto" has measured is forgotten before each text.
        num_passes: In each round, forward passes after the prompt's.
        seconds: In each round, for the whole text.
    """

    def __init__(self, model: Any, *, afresh: bool = False, **arguments: Any) -> None:
        self.model, self.afresh, self.arguments = model, afresh, arguments
        self.num_passes: list[int] = []
        self.seconds: list[float] = []

    def decode(self, prompts: Tensor, max_new_tokens: int) -> Tensor:
        """Take a round, and return the text."""
        arguments: dict[str, Any] = {"do_sample": False, "return_dict_in_generate": True, **self.arguments}
        if self.afresh:
            self.model._auto_drafts = {}
        start = settled_time(prompts.device)
        output = self.model.generate(prompts, max_new_tokens=max_new_tokens, **arguments)
        self.seconds.append(settled_time(prompts.device) - start)
        passes = getattr(output, "num_forward_passes", None)
        self.num_passes.append((max_new_tokens if passes is None else passes) - 1)
        return output.sequences


def ways_of(setup: Setup, model: CertainModel) -> dict[str, Way]:
    """Return plain decoding, the ensemble, and drafts at each acceptance."""
    ways = {"plain": Way(model.backbone), "ensemble": Way(model, ensemble_weight=setup.ensemble_weight)}
    for acceptance in setup.acceptances:
        sure = copy(model)
        sure.acceptance = acceptance
        ways[f"drafts, {acceptance:.0%}"] = Way(sure, draft_tokens=setup.ngram_size - 1)
        if setup.auto:
            ways[f"auto, {acceptance:.0%}, first text"] = Way(copy(sure), afresh=True, draft_tokens="auto")
            ways[f"auto, {acceptance:.0%}, later"] = Way(sure, draft_tokens="auto")
    return ways


def chunk_ratio(setup: Setup, model: CertainModel, prompts: Tensor) -> float:
    """Return the time in which the backbone alone reads as many positions as a draft has, over that for one."""
    cache = model.backbone(prompts).past_key_values
    cache.activate_past_recording()  # a window keeps what `crop` takes back
    seconds: dict[int, list[float]] = {1: [], setup.ngram_size: []}
    for _ in range(20):
        for length, times in seconds.items():
            start = settled_time(prompts.device)
            model.backbone(prompts[:, :length], past_key_values=cache)
            times.append(settled_time(prompts.device) - start)
            cache.crop(-length)
    return median(long / one for one, long in zip(*seconds.values(), strict=True))


@torch.no_grad()
def measure(setup: Setup, dtype: str, size: int, device: torch.device) -> list[list[str]]:
    """Return the cells of each way."""
    model = make_model(setup, dtype, device)
    prompts = torch.randint(setup.draft_vocab_size or setup.vocab_size, (size, setup.prompt_tokens)).to(device)
    text = prompts
    for _ in range(setup.max_new_tokens):
        text = torch.cat([text, model.follower[text[:, -1:]]], dim=1)
    prompt, ways = Way(model.backbone), ways_of(setup, model)
    for _ in range(1 + setup.rounds):
        prompt.decode(prompts, 1)
        for name, way in ways.items():
            if not way.decode(prompts, setup.max_new_tokens).equal(text):
                raise RuntimeError(f"{name} wrote another text than the one that the model is made for")
    reading, table = median(prompt.seconds), []
    for name, way in ways.items():
        pairs = zip(way.seconds[1:], ways["plain"].seconds[1:], strict=True)  # the first round prepares much
        texts = [(ours - reading) / (theirs - reading) for ours, theirs in pairs]
        tokens = [(setup.max_new_tokens - 1) / passes for passes in way.num_passes[1:]]
        passes = [x * gain for x, gain in zip(texts, tokens, strict=True)]
        cells = [f"{median(tokens):.2f}", f"{median(passes):.2f}", f"{median(texts):.2f}"]
        table.append([dtype, str(size), name, f"{1000 * (median(way.seconds[1:]) - reading):.0f}", *cells])
    ratio = chunk_ratio(setup, model, prompts)
    return [*table, [dtype, str(size), f"model alone, {setup.ngram_size} positions", "", "", f"{ratio:.2f}", ""]]


def main(setup: Setup) -> None:
    """Print a table."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    heading = ["type", "rows", "way", "ms", "tokens / pass", "a pass, x plain", "a text, x plain"]
    dtypes = DTYPES if setup.dtype is None else (setup.dtype,)
    table = [row for dtype in dtypes for size in setup.batch_sizes for row in measure(setup, dtype, size, device)]
    print(markdown_table(heading, table))


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
