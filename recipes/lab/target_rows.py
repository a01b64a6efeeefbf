"""Kinds of rows of the table of targets: how a model comes about, and how it continues texts.

A module that has the names of `Kind` is one too.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import finetune_gptneo_wdr
import torch
import train_dynamic_vocab
import train_mdlm_curve
from continue_texts import System
from torch import Tensor, nn
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)

from hf_targets import (
    KnnDatastore,
    KnnProcessor,
    NeuralCache,
    cache_processor,
    cached_perplexities,
    continue_prefixes,
    measure_continuations,
    search_cache,
)
from lab.continuations import PhrasesOf, load_model, with_phrases
from lab.results import read_results
from lab.text import BlockSettings


@cache
def load_judge(name: str, dtype: str) -> dict[str, Any]:
    """Return a judge and its tokenizer, as `measure_continuations` takes them; read once for all rows."""
    return {"judge": load_model(name, dtype=dtype), "judge_tokenizer": AutoTokenizer.from_pretrained(name)}


class Given(NamedTuple):
    """What all rows share when they write."""

    setup: Any
    tokenizer: PreTrainedTokenizerBase
    phrases_of: PhrasesOf

    def measure(self, system: tuple, seed: int, judge: str) -> dict[str, float]:
        """Return columns of the texts that a model writes, and the CPU seconds of one text alone."""
        setup, (model, writing, within, _) = self.setup, System(*system)
        prefixes = setup.prefixes(setup.load(), self.tokenizer)
        arguments = {"new_tokens": setup.new_tokens, **setup.writing(self.tokenizer), **writing}
        set_seed(seed)
        with within:
            continued = continue_prefixes(model, prefixes, batch_size=setup.batch_size, **arguments)
            start = time.process_time()
            continue_prefixes(model, prefixes[: setup.timed_prefixes], batch_size=1, **arguments)
            seconds = (time.process_time() - start) / setup.timed_prefixes
        judges = load_judge(judge, setup.dtype)
        measured = measure_continuations(continued, prefixes, self.tokenizer, words=setup.words(), **judges)
        return {**measured, "seconds_a_text": seconds}


class Kind(NamedTuple):
    """How the model of a row comes about, and how it writes.

    `main(setup, args)` takes what `SETTINGS` names, saves what it makes in `args.output_dir`, and returns figures of
    the test text: `perplexity` or `perplexity_bound`. `system(folder, given)` loads what `main` has saved.
    """

    SETTINGS: Sequence[type]
    main: Callable[..., dict[str, Any]]
    system: Callable[[Path, Given], System]


def plain(folder: Path, given: Given) -> System:
    """Return a causal model that writes by itself; one with heads does with the ensemble weight it has saved."""
    return System(load_model(str(folder)), {})


def phrases(folder: Path, given: Given) -> System:
    """Return a model that writes with phrases of the documents nearest to a text."""
    model: Any = load_model(str(folder))
    return System(model, {"prepare": with_phrases(model, given.phrases_of, given.setup)})


class Filled(nn.Module):
    """A masked diffusion model that continues a text: it fills in what follows, in as many steps as there are tokens.

    An end token in its text is the line end that it stands for.
    """

    def __init__(self, model: Any, end: int, line_end: int) -> None:
        super().__init__()
        self.model, self.generation_config, self._ends = model, GenerationConfig(), (end, line_end)

    def generate(self, ids: Tensor, *, max_new_tokens: int, top_p: float | None = None, **of_causal: Any) -> Tensor:
        """Return texts (batch, time) with what follows; other arguments are of causal models alone."""
        filled = self.model.generate(ids, max_length=ids.shape[1] + max_new_tokens, top_p=top_p)
        return torch.where(filled == self._ends[0], self._ends[1], filled)


def filled(folder: Path, given: Given) -> System:
    """Return a masked diffusion model that continues texts."""
    line_end: Any = given.tokenizer("\n\n", add_special_tokens=False)["input_ids"]
    end: Any = given.tokenizer.eos_token_id
    return System(Filled(AutoModelForMaskedLM.from_pretrained(folder).eval(), end, line_end[-1]), {})


def bound(setup: Any, args: Any) -> dict[str, Any]:
    """Train a masked diffusion model; what it returns is a bound on the perplexity."""
    results: dict[str, Any] = train_mdlm_curve.main(setup, args)
    return {"perplexity_bound": results.pop("perplexity"), **results}


@dataclass
class MemorySettings(BlockSettings):
    """A trained model, to which a memory is added, and what is tried on validation text."""

    model_name_or_path: str = field(default="", metadata={"help": "Causal model, with its tokenizer."})
    k: int = field(default=64, metadata={"help": "Neighbours, of kNN-LM."})
    window: int = field(default=1000, metadata={"help": "W, of the cache."})
    weights: list[float] = field(
        default_factory=lambda: [0.05, 0.1, 0.2, 0.3, 0.45, 0.6], metadata={"help": "Lambdas tried."}
    )


def add_memory(make: Callable, names: Sequence[str], setup: MemorySettings, args: Any) -> dict[str, Any]:
    """Choose the settings of a memory and measure it; the model, none of whose weights change, is saved beside it.

    Args:
        make: From the model, the blocks of all splits, the settings and a folder, what is mixed in.
        names: Of the memory's settings.
    """
    texts, base, folder = setup.load(), setup.model_name_or_path, Path(args.output_dir)
    tokenizer, model = setup.tokenizer(base, texts), load_model(base)
    blocks: Any = setup.blocks(texts, tokenizer)
    made = make(model, blocks, setup, folder)
    found = cached_perplexities(model, blocks["test"], {"found": made})["found"]
    model.save_pretrained(folder)
    chosen = {name: getattr(made, name) for name in names}
    return {"perplexity": found.per_token, "seconds_before": (read_results(base) or {})["cpu_seconds"], **chosen}


def with_memory(load: Callable, names: Sequence[str], folder: Path, given: Given) -> System:
    """Return a model that writes with the memory that `load` returns, from the model, a folder and its settings."""
    model, results = load_model(str(folder)), read_results(folder) or {}
    processor = load(model, folder, {name: results[name] for name in names})
    return System(model, {"logits_processor": [processor]}, processor)


def _make_knn(model: Any, blocks: Any, setup: MemorySettings, folder: Path) -> KnnProcessor:
    processor = KnnProcessor(KnnDatastore.build(model, blocks["train"], folder / "store"), model, k=setup.k)
    return processor.tuned(blocks["validation"], temperatures=[1.0, 3.0, 10.0, 30.0], weights=setup.weights)


def _load_knn(model: Any, folder: Path, settings: dict[str, Any]) -> KnnProcessor:
    return KnnProcessor(KnnDatastore.from_folder(folder / "store"), model, **settings)


def _make_cache(model: Any, blocks: Any, setup: MemorySettings, folder: Path) -> NeuralCache:
    return search_cache(model, blocks["validation"], setup.window, [3.0, 10.0, 30.0], setup.weights, relative=True)


def _load_cache(model: Any, folder: Path, settings: dict[str, Any]) -> Any:
    return cache_processor(NeuralCache(**settings, relative=True), model)


def _memory(make: Callable, load: Callable, *names: str) -> Kind:
    return Kind(
        (MemorySettings, TrainingArguments), partial(add_memory, make, names), partial(with_memory, load, names)
    )


KINDS = {
    "tokens": Kind(finetune_gptneo_wdr.SETTINGS, finetune_gptneo_wdr.main, plain),
    "phrases": Kind(train_dynamic_vocab.SETTINGS, train_dynamic_vocab.main, phrases),
    "masked diffusion": Kind(train_mdlm_curve.SETTINGS, bound, filled),
    "kNN-LM": _memory(_make_knn, _load_knn, "k", "temperature", "weight"),
    "neural cache": _memory(_make_cache, _load_cache, "window", "theta", "weight"),
}
"""The kinds of rows, by name."""
