"""The card of a trained model: what it is, how to load it, and its figures with the command that made them."""

import os
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, EvalResultEntry, HfApi, ModelCard, ModelCardData, eval_result_entries_to_yaml
from transformers import AutoConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from hf_targets.backbones.positions import max_positions
from hf_targets.figures.page_style import printable
from hf_targets.training.uploads import own_files
from lab.results import shareable, write_results

_TEMPLATE = Path(__file__).with_name("card.jinja")
EVAL_RESULTS = ".eval_results/hf_targets.yaml"
_TASKS = {
    "AutoModelForCausalLM": (
        "text-generation",
        'inputs = tokenizer("The", return_tensors="pt")\n'
        "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=8)[0]))",
    ),
    "AutoModelForSeq2SeqLM": (
        "translation",
        'inputs = tokenizer(["a text"], return_tensors="pt")\n'
        "print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))",
    ),
    "AutoModelForMaskedLM": (
        "fill-mask",
        'inputs = tokenizer("The [MASK] is", return_tensors="pt")\n'
        'best = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id].argmax(dim=-1)\n'
        "print(repr(tokenizer.decode(best)))",
    ),
}
"""To each Auto class the Hub's name of its task, and code that uses `model` and `tokenizer`."""


def finish(
    trainer: Any, tokenizer: PreTrainedTokenizerBase, results: dict[str, Any], told: str = "", **card: Any
) -> None:
    """Complete the folder of a model that was trained and saved: tokenizer, card, results; and upload it if asked to.

    It goes up as it lies there: a Trainer's own upload saves its model once more, with adapters and frozen parts.
    One process calls this. `told` is printed too; `card` are other arguments of `write_card`.
    """
    args, folder = trainer.args, trainer.args.output_dir
    tokenizer.save_pretrained(folder)
    write_card(folder, results, name=trainer.hub_model_id or args.hub_model_id, **card)
    write_results(folder, results)
    print(f"Model and card: {folder}\n{told}", flush=True)
    if args.push_to_hub:
        trainer._finish_current_push()  # of a checkpoint
        place = {"repo_id": trainer.hub_model_id, "revision": args.hub_revision, "token": args.hub_token}
        HfApi().upload_folder(**place, folder_path=folder, allow_patterns=own_files(tokenizer))


def write_card(
    folder: str | Path,
    results: Mapping[str, float],
    *,
    dataset: str,
    auto_class: str = "AutoModelForCausalLM",
    usage: str | None = None,
    text: str = "",
    base_model: str | None = None,
    name: str | None = None,
) -> None:
    """Write `README.md` beside a model, and its figures as `.eval_results/*.yaml` too, which the Hub reads now.

    Args:
        results: Figures on the test text, by name; those of the validation text are left out.
        auto_class: The class that loads the model, an Auto class or one of hf_targets.
        usage: Python lines that use `model` and `tokenizer`; None: those of the class.
        text: Markdown put above the figures; texts of a model or of others in it are `quoted`.
        name: What the code loads: the model's name on the Hub; None: its folder, as seen from the working folder or,
            if it lies elsewhere, from the one above it.
    """
    folder, config = Path(folder), AutoConfig.from_pretrained(folder)
    task, used = _TASKS.get(auto_class, _TASKS["AutoModelForCausalLM"])
    figures = {key: value for key, value in results.items() if not key.startswith(("validation_", "seconds"))}
    figures = {key: value for key, value in figures.items() if isinstance(value, int | float)}
    ours, dataset, path = type(config).__module__.startswith("hf_targets."), shareable(dataset), folder.resolve()
    name = name or (os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path.name)
    data = ModelCardData(
        library_name="hf-targets" if ours else "transformers",
        pipeline_tag=task,
        tags=["hf-targets", config.model_type],
        base_model=base_model if base_model and not Path(base_model).exists() else None,
        model_name=name,
        eval_results=[EvalResult(task, dataset, dataset, key, one, metric_name=key) for key, one in figures.items()],
    )
    told, code = command_line(), name.replace("\\", "\\\\").replace('"', '\\"')
    values = {"title": name.rsplit("/", 1)[-1], "what": type(config).__name__.removesuffix("Config"), "ours": ours}
    values |= {"auto_class": auto_class, "name": code, "usage": used if usage is None else usage}
    values |= {"dataset": quoted(dataset), "command": quoted(told)}
    lines = [text, "", *(f"- {key}: {value:.5g}" for key, value in figures.items())]
    card = ModelCard.from_template(data, template_path=str(_TEMPLATE), results="\n".join(lines).strip(), **values)
    card.save(folder / "README.md")
    scores = [EvalResultEntry(dataset, key, one, notes=told) for key, one in figures.items()]
    (folder / EVAL_RESULTS).parent.mkdir(exist_ok=True)
    (folder / EVAL_RESULTS).write_text(yaml.safe_dump(eval_result_entries_to_yaml(scores), allow_unicode=True))


def quoted(text: str) -> str:
    """Return any text as code in Markdown, in one line, which none of its characters ends.

    >>> quoted("a `b`\\r\\n<br>")
    '`` a `b` <br> ``'
    """
    line = " ".join(printable(text).split())
    mark = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{mark} {line} {mark}" if "`" in line else f"{mark}{line}{mark}"


def command_line() -> str:
    """Return the command of this process, as others may read it: without tokens of the Hub."""
    words, secret = [], ("--hub_token", "--hub-token", "--push_to_hub_token")
    for before, word in zip(["", *sys.argv], sys.argv, strict=False):
        words.append("..." if before in secret or word.startswith(tuple(f"{name}=" for name in secret)) else word)
    count = os.environ.get("WORLD_SIZE", "1")
    return f"{'python' if count == '1' else f'torchrun --nproc_per_node {count}'} {shlex.join(map(shareable, words))}"


def sample_text(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, seed: int) -> str:
    """Return the prompt with up to 48 sampled tokens (top-p .9), no more than the model has positions for."""
    set_seed(seed)
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    positions = max_positions(model.config)
    room = 48 if positions is None else min(48, positions - inputs["input_ids"].shape[1])
    return str(tokenizer.decode(model.generate(**inputs, max_new_tokens=room, do_sample=True, top_p=0.9)[0]))  # pyright: ignore
