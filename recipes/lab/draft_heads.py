"""What draft heads are trained and measured on: kinds of heads, a base model, text that it may write, and prompts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from datasets.config import HF_DATASETS_CACHE
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.data.blocks import pack_blocks
from hf_targets.data.corpora import load_corpus, load_parts, split_rows
from hf_targets.data.prompts import encode_prompt, takes_turns
from hf_targets.multitoken.causal import MultiTokenForCausalLM
from hf_targets.multitoken.frozen_base import left_padded, write_texts
from hf_targets.multitoken.heads import HEADS

KINDS: dict[str, dict[str, Any]] = {
    "wdr": {"target": "difference", "head": "conditional"},
    "wdr-plain": {"target": "difference", "head": "mlp"},
    "simple": {"target": "embedding", "head": "mlp"},
    "medusa": {"target": "embedding", "head": "medusa"},
    "mtp": {"target": "embedding", "head": "mtp"},
}
"""Kinds of draft heads by name, each with its target and its head."""


def settings_of(kind: str) -> dict[str, Any]:
    """Return the fields of `MultiTokenConfig` for a kind of draft heads: one of `KINDS`, or any registered head.

    A registered head predicts word differences if it reads the conjugate, else embeddings.
    """
    if kind not in {**KINDS, **HEADS}:
        raise ValueError(f"draft heads must be one of {', '.join({**KINDS, **HEADS})}, got {kind!r}")
    return KINDS.get(kind) or {"target": "difference" if HEADS[kind].reads_conjugate else "embedding", "head": kind}


def load_base(name_or_path: str, dtype: str = "float32") -> PreTrainedModel:
    """Load a causal language model in evaluation mode; if it has future-token heads, return its backbone."""
    model = repair_reformer(AutoModelForCausalLM.from_pretrained(name_or_path, dtype=dtype))
    if isinstance(model, MultiTokenForCausalLM):
        model = model.backbone
        model.name_or_path = name_or_path  # heads saved without the backbone name this as their base model
    return model.eval()


@dataclass(kw_only=True)
class DraftText:
    """What heads are trained on, and the prompts that decoding is measured on."""

    dataset: str | None = field(
        default=None, metadata={"help": "Text, as load_corpus finds it. None: text that the model writes itself."}
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    max_train_words: int | None = field(default=None, metadata={"help": "Train on so many words only."})
    prompts: str | None = field(
        default=None, metadata={"help": "Data set of users' turns that the model answers. None: it writes freely."}
    )
    prompt_column: str = field(default="text", metadata={"help": "Its column."})
    num_generated: int = field(default=2000, metadata={"help": "Texts that the model writes itself."})
    texts_at_once: int = field(default=64, metadata={"help": "Of those that it writes; more on a GPU."})
    temperature: float = field(default=1.0, metadata={"help": "Of those texts: near 0 for heads of greedy decoding."})
    block_size: int = field(default=128, metadata={"help": "Tokens in a row of a batch."})
    test_prompts: str | None = field(
        default=None, metadata={"help": "Data set of the prompts to measure on. None: held out from the others."}
    )
    test_column: str = field(default="text", metadata={"help": "Its column."})
    num_prompts: int = field(default=8, metadata={"help": "Held-out texts to measure on."})
    prompt_tokens: int = field(default=16, metadata={"help": "Tokens of a prompt that is no user's turn."})
    cache_dir: str = field(
        default=str(Path(HF_DATASETS_CACHE, "frozen_base")),
        metadata={"help": "Folder that keeps the model's own texts, and its hidden states."},
    )
    dtype: Literal["float32", "bfloat16"] = field(default="float32", metadata={"help": "Type of the model's weights."})

    def rows(self, base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Dataset:
        """Return rows to train on: of a corpus, or of text that the base writes."""
        if self.dataset is not None:
            return pack_blocks(self._corpus()["train"], tokenizer, self.block_size)
        if self.prompts is None:
            return self._written(base, [_begin(tokenizer)] * self.num_generated)
        prompts = self._turns(tokenizer, self.prompts, self.prompt_column, "train")
        fitting = [prompt for prompt in prompts if 2 * len(prompt) <= self.block_size][: self.num_generated]
        return self._written(base, fitting)

    def test_batches(self, base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, size: int) -> list[Any]:
        """Return prompts to measure on, `size` at once, as a tokenizer gives them."""
        if self.test_prompts is not None:
            prompts = self._turns(tokenizer, self.test_prompts, self.test_column, "test")
        elif self.prompts is not None:
            prompts = self._turns(tokenizer, self.prompts, self.prompt_column, "test")
        elif self.dataset is not None:
            prompts = pack_blocks(self._corpus()["validation"], tokenizer, self.block_size)["input_ids"]
        else:
            prompts = self._written(base, [_begin(tokenizer)] * self.num_prompts, 1)
            prompts = prompts["input_ids"]
        if self.test_prompts is None and self.prompts is None:
            prompts = [prompt[: self.prompt_tokens] for prompt in prompts[: self.num_prompts]]
        prompts = list(prompts[: self.num_prompts])
        return [left_padded(prompts[start : start + size], 0) for start in range(0, len(prompts), size)]

    def _corpus(self) -> Mapping[Any, Dataset]:
        return load_corpus(str(self.dataset), max_train_words=self.max_train_words, config_name=self.dataset_config)

    def _written(self, base: PreTrainedModel, prompts: list[list[int]], seed: int = 0) -> Dataset:
        told: Any = {"block_size": self.block_size, "temperature": self.temperature, "batch_size": self.texts_at_once}
        return write_texts(base, prompts, self.cache_dir, seed=seed, **told)

    def _turns(self, tokenizer: Any, name: str, column: str, split: str) -> list[Any]:
        parts = load_parts(name)
        part, numbers = split_rows({name: len(rows) for name, rows in parts.items()}, name)[split]
        texts = [text.strip() for text in parts[part].select(numbers)[column]]
        asked: Any = [[{"role": "user", "content": text}] for text in texts] if takes_turns(tokenizer) else texts
        return [encode_prompt(tokenizer, one)["input_ids"][0].tolist() for one in asked]  # pyright: ignore


def _begin(tokenizer: Any) -> list[int]:
    return [tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id]
