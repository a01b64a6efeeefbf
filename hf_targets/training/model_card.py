"""The card of a trained model: what it is, how to load it, and its numbers with the settings that made them."""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from hf_targets.training.comparison import Row, format_table

_TEXT = """---
{metadata}
---

# {name}

A {backbone} taught {target} for the {ngram_size} next words (alpha {loss_weight:g}), with
[hf-targets](https://pypi.org/project/hf-targets/).

```python
import hf_targets  # registers the model with the Auto classes
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
```

## Results

Perplexity on the test text of `{dataset}`. Every row was trained with the same budget and seed; its checkpoint and its
ensemble weight (lambda) were chosen on the validation text.

{table}

![Learning curves](learning_curves.png)

Command: `{command}`

## Sample

> {sample}
"""


def write_model_card(
    folder: Path,
    *,
    name: str,
    config,
    rows: Sequence[Row],
    best: Row,
    dataset: str,
    command: str,
    sample: str,
) -> None:
    """Write `README.md` for the model that `best` is the row of.

    Args:
        folder: Where the checkpoint is.
        name: Of the model on the Hub, or of its folder.
        config: The model's `MultiTokenConfig`.
        rows: All rows of the comparison.
        sample: A generated text.
    """
    results = [
        EvalResult("text-generation", "Language modelling", dataset, dataset, "perplexity", value, metric_name=metric_name)
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
        base_model=config.base_model_name_or_path,
        model_name=name,
        eval_results=results,
    )
    targets = {"difference": "word difference representations", "embedding": "the words themselves (simple N-gram)"}
    text = _TEXT.format(
        metadata=metadata.to_yaml(),
        name=name,
        backbone=config.backbone.model_type,
        target=targets[config.target],
        ngram_size=config.ngram_size,
        loss_weight=config.loss_weight,
        dataset=dataset,
        table=format_table(list(rows)),
        command=command,
        sample=sample.replace("\n", "\n> "),
    )
    ModelCard(text).save(folder / "README.md")
