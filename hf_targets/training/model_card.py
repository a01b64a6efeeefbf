"""The card of a trained model: what it is, how to load it, and its numbers with the settings that made them."""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments, set_seed

from hf_targets.positions import max_positions
from hf_targets.training.comparison import Row
from hf_targets.training.tables import format_differences, format_table

_TEXT = """---
{metadata}
---

# {name}

{what}, trained with the Python package hf-targets.

```python
import hf_targets  # registers the model with the Auto classes
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
```

## Results

Perplexity on the test text of `{dataset}`. All rows were trained by the command below, on the same text, with the same
updates of the backbone, schedule, seeds and settings.{phase} Heads make a step longer: the last column has each row's
time. The checkpoint of a row is the one of the lowest perplexity on the validation text, where its ensemble weight
(lambda) was chosen, too. {seeds}

{table}

{differences}

![Learning curves](learning_curves.png)

Command: `{command}`

## Sample

> {sample}
"""


_PHASE = " Before that, heads learnt alone for {steps} updates, in which the backbone stayed as it was."


def save_with_card(
    folder: Path,
    name: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    best: Row,
    *,
    dataset: str,
    command: str,
    prompt: str,
    head_warmup_steps: int | None = None,
) -> str:
    """Save a row's model, its tokenizer and its card, and return a sample of it.

    The model generates with the ensemble weight that its row was measured with.

    Args:
        folder, name, rows, best, dataset, command, head_warmup_steps: As for `write_model_card`.
        prompt: What the sample begins with.
    """
    if best.ensemble_weight is not None:
        model.config.ensemble_weight = best.ensemble_weight
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    sample = generate_sample(model, tokenizer, prompt, best.seed)
    write_model_card(
        folder,
        name,
        model.config,
        rows,
        best,
        dataset=dataset,
        command=command,
        sample=sample,
        head_warmup_steps=head_warmup_steps,
    )
    return sample


def write_model_card(
    folder: Path,
    name: str,
    config: PreTrainedConfig,
    rows: Sequence[Row],
    best: Row,
    *,
    dataset: str,
    command: str,
    sample: str,
    head_warmup_steps: int | None = None,
) -> None:
    """Write `README.md` beside a model: what it is, how to load it, all rows of the comparison, a sample.

    Args:
        folder: Where the checkpoint is.
        name: Of the model on the Hub, or of its folder.
        config: Of the model; that of a target describes it in its `describe()`.
        rows: All rows of the comparison.
        best: The row whose model this is.
        sample: A generated text.
        head_warmup_steps: Of the phase in which heads learnt alone, if there was one; rows without heads had none.
    """
    has_heads = any(row.ensemble_weight is not None for row in rows)
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=dataset,
            dataset_name=dataset,
            metric_type="perplexity",
            metric_name=metric_name,
            metric_value=value,
        )
        for metric_name, value in (
            ("perplexity", best.test_perplexity(ensemble=False)),
            ("perplexity with ensemble", best.test_perplexity(ensemble=True)),
        )
        if value is not None
    ]
    metadata = ModelCardData(
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["hf-targets", config.model_type],
        base_model=getattr(config, "base_model_name_or_path", None),
        model_name=name,
        eval_results=results,
    )
    text = _TEXT.format(
        metadata=metadata.to_yaml(),
        name=name,
        what=_describe(config),
        dataset=dataset,
        phase=_PHASE.format(steps=head_warmup_steps) if head_warmup_steps and has_heads else "",
        seeds=_describe_seeds(rows, best),
        table=format_table(rows),
        differences=format_differences(rows),
        command=command,
        sample=sample.replace("\n", "\n> "),
    )
    ModelCard(text).save(folder / "README.md")


def _describe_seeds(rows: Sequence[Row], best: Row) -> str:
    seeds = sorted({row.seed for row in rows})
    if len(seeds) == 1:
        return "This is one seed: a small difference between two rows may be chance."
    return (
        f"Figures are means over the seeds {', '.join(map(str, seeds))}, with their standard errors. A difference "
        f"below two standard errors is called none. The model here is that of seed {best.seed}, whose validation "
        "perplexity is the lowest of its row."
    )


def _describe(config: PreTrainedConfig) -> str:
    own_words = getattr(config, "describe", None)  # of a target's configuration
    return f"A plain {config.model_type} model" if own_words is None else own_words()


def generate_sample(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, seed: int) -> str:
    """Return the prompt with up to 48 sampled tokens (top-p .9), no more than the model has positions for."""
    set_seed(seed)
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    positions = max_positions(model.config)
    room = 48 if positions is None else positions - inputs["input_ids"].shape[1]
    if room < 1:
        return prompt
    return str(tokenizer.decode(model.generate(**inputs, max_new_tokens=min(48, room), do_sample=True, top_p=0.9)[0]))  # pyright: ignore


def create_repository(name: str, args: TrainingArguments) -> None:
    """Make sure that there is a repository to upload to, before hours of training.

    Args:
        name: Of the repository.
        args: Their `hub_token` and `hub_private_repo` are used.
    """
    HfApi(token=args.hub_token).create_repo(name, private=args.hub_private_repo, exist_ok=True)


def upload_folder(folder: Path, name: str, args: TrainingArguments, *, leave_out: Sequence[str]) -> str:
    """Upload a model's folder to its repository on the Hub; return its address there.

    Args:
        leave_out: Subfolders that stay here.
    """
    api = HfApi(token=args.hub_token)
    repository = api.create_repo(name, exist_ok=True).repo_id
    ignored = [f"{subfolder}/*" for subfolder in leave_out]
    return str(api.upload_folder(repo_id=repository, folder_path=folder, ignore_patterns=ignored))
