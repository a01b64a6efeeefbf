"""Fine-tune a model on conversations with TRL, with heads that learn to draft from the same targets.

On translations of Multi30k as instructions, SmolLM2 with LoRA (`make models` fetches it):
    HF_TARGETS_DATA=data python recipes/finetune_sft.py recipes/settings/finetune_sft/smollm2.yaml

On your own data, with `messages` or with `prompt` and `completion`; all of TRL's `SFTConfig` are arguments:
    accelerate launch recipes/finetune_sft.py --model_name_or_path MODEL --dataset my_rows.jsonl \
        --output_dir runs/sft --assistant_only_loss true

`--heads false` is TRL's own `SFTTrainer`, to compare with: recipes/tables/finetune_sft.py. Measured:
recipes/fine_tuning.md.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset, load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from hf_targets import MultiTokenForCausalLM, MultiTokenSFTTrainer, load_pairs
from hf_targets.data.prompts import encode_prompt
from hf_targets.multitoken.frozen_base import left_padded
from lab.card import finish
from lab.draft_heads import KINDS, settings_of
from lab.memory import step_memory
from lab.results import timed_training
from lab.runs import run_alone
from lab.speed import DecodingMethod, compare_speeds


@dataclass(kw_only=True)
class Setup:
    """Which model is tuned on what, and with which heads."""

    model_name_or_path: str = field(metadata={"help": "A causal language model: a folder, or a Hub id."})
    dataset: str = field(metadata={"help": "Rows with messages, or prompt and completion: a JSON file or a Hub id."})
    instruction: str | None = field(
        default=None,
        metadata={"help": "`dataset` is one of pairs (load_pairs), and a prompt is this and a source."},
    )
    source_lang: str = field(default="en", metadata={"help": "Of pairs, as load_pairs has it."})
    target_lang: str = field(default="de", metadata={"help": "Likewise, of the completions."})
    num_train_rows: int | None = field(default=None, metadata={"help": "Train on the first so many rows; None: all."})
    num_test_rows: int = field(default=64, metadata={"help": "Rows of the test split, or the last of the only one."})
    dtype: str = field(default="float32", metadata={"help": "Of the base model's weights."})
    lora_rank: int | None = field(default=8, metadata={"help": "None: all weights are trained."})
    heads: bool = field(default=True, metadata={"help": "Whether heads are trained, or the model alone by TRL."})
    kind: str = field(default="wdr", metadata={"help": f"Of heads: one of {', '.join(KINDS)}, or a registered one."})
    ngram_size: int = field(default=4, metadata={"help": "N: the heads draft N - 1 tokens."})
    loss_weight: float = field(default=0.01, metadata={"help": "Alpha, of the heads' losses beside TRL's."})
    head_learning_rate: float | None = field(default=None, metadata={"help": "None: 1e-3 on a trained model."})
    max_new_tokens: int = field(default=48, metadata={"help": "Tokens of each answer whose speed is measured."})
    num_prompts: int = field(default=8, metadata={"help": "Test prompts that are answered, one by one and together."})


SETTINGS = (Setup, SFTConfig)


def rows_of(setup: Setup) -> tuple[Dataset, Dataset]:
    """Return the rows to train on and those to test on."""
    if setup.instruction is not None:
        pairs: Any = load_pairs(setup.dataset, source_lang=setup.source_lang, target_lang=setup.target_lang)
        said: Any = {name: as_turns(pairs[name], setup.instruction) for name in ("train", "test")}
    elif setup.dataset.endswith((".json", ".jsonl", ".gz")):
        said = load_dataset("json", data_files=setup.dataset)
    else:
        said = load_dataset(setup.dataset)
    parts = said if "test" in said else said["train"].train_test_split(setup.num_test_rows, shuffle=False)
    sizes = {"train": setup.num_train_rows, "test": setup.num_test_rows}
    train, test = (parts[name].select(range(min(size or 10**9, len(parts[name])))) for name, size in sizes.items())
    return train, test


def as_turns(pairs: Dataset, instruction: str) -> Dataset:
    """Return pairs as prompts of a user and completions of an assistant."""
    asked = [[{"role": "user", "content": instruction + text}] for text in pairs["source"]]
    answered = [[{"role": "assistant", "content": text}] for text in pairs["target"]]
    return Dataset.from_dict({"prompt": asked, "completion": answered})


def main(setup: Setup, args: SFTConfig) -> dict[str, float]:
    """Tune the model, save it, and return its test loss, the cost of a step, and how fast its heads draft."""
    train, test = rows_of(setup)
    tokenizer = AutoTokenizer.from_pretrained(setup.model_name_or_path)
    base = AutoModelForCausalLM.from_pretrained(setup.model_name_or_path, dtype=setup.dtype)
    set_seed(args.seed)
    model, kind = base, SFTTrainer
    given: dict[str, Any] = {}
    if setup.heads:
        sizes = {"ngram_size": setup.ngram_size, "loss_weight": setup.loss_weight}
        model = MultiTokenForCausalLM.from_base(base, **settings_of(setup.kind), **sizes)
        kind, given = MultiTokenSFTTrainer, {"head_learning_rate": setup.head_learning_rate}
    if setup.lora_rank is not None:
        from peft import LoraConfig

        targets = [f"{part}_proj" for part in ("q", "k", "v", "o", "gate", "up", "down")]
        given["peft_config"] = LoraConfig(r=setup.lora_rank, lora_alpha=32, target_modules=targets)
    data = {"train_dataset": train, "eval_dataset": test, "processing_class": tokenizer}
    trainer: Any = kind(model, args=args, **data, **given)
    results: dict[str, float] = {"loss_before": trainer.evaluate()["eval_loss"]}
    seconds = timed_training(trainer)
    results["loss"] = trainer.evaluate()["eval_loss"]
    results["step_seconds"] = seconds / trainer.state.global_step
    results["step_memory"] = step_memory(trainer)
    tuned = trainer.model.merge_and_unload() if setup.lora_rank is not None else trainer.model
    folder: Any = args.output_dir
    tuned.save_pretrained(folder)
    if setup.heads:
        tuned = MultiTokenForCausalLM.from_pretrained(folder, dtype=setup.dtype).to(args.device).eval()
        results |= speeds(tuned, tokenizer, test, setup)
    told = "\n".join(f"{name}: {value:.3f}" for name, value in results.items())
    finish(trainer, tokenizer, results, told, dataset=setup.dataset, base_model=setup.model_name_or_path)
    return results


def speeds(model: Any, tokenizer: Any, test: Any, setup: Setup) -> dict[str, float]:
    """Return how many times as fast drafts are as plain decoding, one answer and all answers at once."""
    rows = test.select(range(min(setup.num_prompts, len(test))))
    asked = [row["prompt"] if "prompt" in row else row["messages"][:-1] for row in rows]
    prompts = [encode_prompt(tokenizer, prompt)["input_ids"][0].tolist() for prompt in asked]
    methods = {
        "plain": DecodingMethod(model, {}),
        "chain": DecodingMethod(model, {"draft_tokens": setup.ngram_size - 1}),
        "auto": DecodingMethod(model, {"draft_tokens": "auto"}),
    }
    found = {}
    for size in (1, setup.num_prompts):
        parts = [prompts[start : start + size] for start in range(0, len(prompts), size)]
        batches = [left_padded(part, tokenizer.pad_token_id) for part in parts]
        batches = [{name: value.to(model.device) for name, value in batch.items()} for batch in batches]
        plain, *drafted = compare_speeds(methods, batches, max_new_tokens=setup.max_new_tokens)
        for speed in drafted:
            found[f"{speed.name}_x_plain_{size}"] = speed.tokens_per_second / plain.tokens_per_second
            found[f"{speed.name}_tokens_per_pass_{size}"] = speed.tokens_per_pass
            found["same_text"] = min(found.get("same_text", 1.0), speed.same)
    return found


if __name__ == "__main__":
    run_alone(main, *SETTINGS, description=__doc__)
