"""The card of a trained model: what it is, how to load it, and its figures with the command that made them."""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from huggingface_hub.errors import HfHubHTTPError
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed
from yaml import YAMLError

from hf_targets.backbones.positions import max_positions
from hf_targets.training.comparison import Run
from hf_targets.training.experiments import Experiment

LIBRARY = "hf-targets"
_SECRETS = ("--hub_token", "--hub-token", "--push_to_hub_token", "--push-to-hub-token")
_ENGLISH = ("documentation", "documentation:topics", "ptb", "wikitext-2", "wikitext-103", "text8", "lm1b-sample")
"""Corpora of `load_corpus` whose language is known by their name."""

_METRICS = {
    "perplexity": "perplexity",
    "perplexity_ensemble": "perplexity with ensemble",
    "best_path_perplexity": "perplexity of the best path with phrases",
}
"""Test metrics of a run that a card lists, and their names there."""

_TEXT = """---
{metadata}
---

# {title}

{what}, trained with the Python package hf-targets.

## Use

{loading}

```python
{usage}
```

## Results

{results}

Seeds: {seeds}. This model: seed {seed}. Text: `{dataset}`.

Command{processes}: `{command}`
"""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """How a model is loaded and used, for the code on its card.

    Attributes:
        load: Python lines that make `model` and `tokenizer`; `"{name}"` stands for the name or folder of the model.
        run: Python lines that use them, and print something.
        task: The Hub's name of the task, its `pipeline_tag`.
    """

    load: str
    run: str
    task: str


CAUSAL_USAGE = Usage(
    load="""from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")""",
    run="""inputs = tokenizer("The", return_tensors="pt")
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=8)[0]))""",
    task="text-generation",
)
"""Of any causal language model."""

PAIR_USAGE = Usage(
    load="""from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")""",
    run="""inputs = tokenizer(["a text"], return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))""",
    task="translation",
)
"""Of any model with an encoder."""


@dataclass(frozen=True, kw_only=True)
class CardFacts:
    """What a recipe knows of the models that it leaves.

    Attributes:
        dataset: The text's name.
        results: Markdown: tables, and what they show.
        usage: For models of ours; None: that of any model of their kind.
        base_model: Name or folder of the model that training began with, if any.
        license: Of the model; None: that of the base model's card, if it states one.
        language: Of the text; None: it is stated only for corpora whose language is known.
        metrics: Test metrics by their names in `Run.test`, with their names on the card.
    """

    dataset: str
    results: str
    usage: Usage | None = None
    base_model: str | None = None
    license: str | None = None
    language: str | None = None
    metrics: Mapping[str, str] | None = None

    def of_run(self, run: Run) -> dict[str, float]:
        """Return the metrics that a run's card lists."""
        known = _METRICS if self.metrics is None else self.metrics
        return {name: run.test[key] for key, name in known.items() if key in run.test}


def write_cards(experiment: Experiment, runs: Sequence[Run], facts: CardFacts) -> None:
    """Write the card of each run's model into its folder, beside the model."""
    seeds = sorted({run.seed for run in runs})
    for run in runs:
        folder = experiment.folder_of(run.name, run.seed)
        write_card(folder, loadable_name(folder), facts, facts.of_run(run), seeds=seeds, seed=run.seed)


def write_card(
    folder: Path,
    name: str,
    facts: CardFacts,
    metrics: Mapping[str, float],
    *,
    seeds: Sequence[int],
    seed: int,
    sample: str | None = None,
) -> None:
    """Write `README.md` beside a model.

    Args:
        folder: Where the model is.
        name: What the code on the card loads: the model's name on the Hub, or its folder.
        metrics: Figures of the model on the test text, by their names.
        seeds: Of all runs that `facts.results` shows.
        seed: Of this model.
        sample: A text that the model generated.
    """
    config = AutoConfig.from_pretrained(folder)
    is_ours = type(config).__module__.split(".")[0] == __name__.split(".")[0]
    base = facts.base_model
    of_its_kind = PAIR_USAGE if config.is_encoder_decoder else CAUSAL_USAGE
    usage = facts.usage if is_ours and facts.usage is not None else of_its_kind
    code = f"{usage.load}\n\n{usage.run}".replace('"{name}"', json.dumps(name, ensure_ascii=False))
    data = ModelCardData(
        library_name=LIBRARY if is_ours else "transformers",
        pipeline_tag=usage.task,
        tags=[LIBRARY, config.model_type],
        base_model=base if base is not None and is_hub_name(base) else None,
        license=facts.license or (None if base is None else license_of(base)),
        language=facts.language or ("en" if facts.dataset in _ENGLISH else None),
        datasets=[facts.dataset] if "/" in facts.dataset and is_hub_name(facts.dataset) else None,
        metrics=["perplexity"] if any("perplexity" in metric for metric in metrics) else None,
        model_name=name,
        eval_results=[_result(metric, value, facts.dataset, usage.task, seed) for metric, value in metrics.items()],
        seeds=list(seeds),
    )
    text = _TEXT.format(
        metadata=data.to_yaml(),
        title=name.rsplit("/", 1)[-1],
        what=describe(config),
        loading="Import hf_targets before loading: this registers the class with the Auto classes. Without the import "
        "Transformers asks for `trust_remote_code=True`."
        if is_ours
        else "It is a model of Transformers, and loads without hf-targets.",
        usage=f"import hf_targets\n{code}" if is_ours else code,
        results=facts.results.strip(),
        seeds=", ".join(map(str, seeds)),
        seed=seed,
        dataset=facts.dataset,
        command=command_line(),
        processes=f", in {count} processes" if (count := os.environ.get("WORLD_SIZE", "1")) != "1" else "",
    )
    if sample is not None:
        quoted = sample.replace("\n", "\n> ")
        text += f"\n## Sample\n\n> {quoted}\n"
    ModelCard(text).save(folder / "README.md")


def loadable_name(folder: Path) -> str:
    """Return what code loads a folder by: its path where that is relative, and else its last part."""
    return folder.name if folder.is_absolute() else folder.as_posix()


def _result(metric: str, value: float, dataset: str, task: str, seed: int) -> EvalResult:
    return EvalResult(
        task_type=task,
        dataset_type=dataset,
        dataset_name=dataset,
        dataset_split="test",
        metric_type="perplexity" if "perplexity" in metric else metric.replace(" ", "_").lower(),
        metric_name=metric,
        metric_value=value,
        metric_args={"seed": seed},
    )


def describe(config: PreTrainedConfig) -> str:
    """Return what a model is, in a line: a target's configuration says it itself in `describe`."""
    own_words = getattr(config, "describe", None)
    return f"A {config.model_type} model" if own_words is None else own_words()


def is_hub_name(name: str) -> bool:
    """Return whether a name is one of the Hub, and not a folder or file here."""
    return not Path(name).expanduser().exists() and name.count("/") <= 1 and not name.startswith((".", "~", "/"))


def license_of(base_model: str) -> str | None:
    """Return the licence that the card of a model states; None if it has no card, states none, or is out of reach."""
    file = Path(base_model).expanduser() / "README.md"
    try:
        if Path(base_model).expanduser().exists():
            return ModelCard.load(file).data.get("license") if file.is_file() else None
        return ModelCard.load(base_model).data.get("license")
    except (OSError, ValueError, YAMLError, HfHubHTTPError):
        return None


def command_line() -> str:
    """Return the command of this process, with tokens of the Hub left out."""
    words: list[str] = []
    for before, word in zip(["", *sys.argv], sys.argv, strict=False):
        name, equals, _ = word.partition("=")
        hidden = f"{name}=..." if name in _SECRETS and equals else word
        words.append("..." if before in _SECRETS else hidden)
    return shlex.join(["python", *words])


def generate_sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, seed: int) -> str:
    """Return the prompt with up to 48 sampled tokens (top-p .9), no more than the model has positions for."""
    set_seed(seed)
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    positions = max_positions(model.config)
    room = 48 if positions is None else positions - inputs["input_ids"].shape[1]
    if room < 1:
        return prompt
    return str(tokenizer.decode(model.generate(**inputs, max_new_tokens=min(48, room), do_sample=True, top_p=0.9)[0]))  # pyright: ignore
