"""Write a training set whose targets are a teacher's translations: sequence-level distillation.

    HF_TARGETS_DATA=data accelerate launch recipes/distill_translations.py \
        recipes/settings/distill_translations/multi30k.yaml --teacher runs/train_translation/multi30k-de-en

Any encoder-decoder model of the Hub is a teacher: --teacher Helsinki-NLP/opus-mt-de-en. Broken off, it goes on where it
was. With --workers 2, Ray shares the parts out in place of accelerate, and replaces a worker that dies. Train on the
result with `--dataset OUTPUT_DIR --source_column source --target_column target`.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import PartialState
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, PreTrainedTokenizerBase

from hf_targets import distill
from lab.settings import parse_settings
from lab.text import PairSettings


@dataclass
class Setup(PairSettings):
    """The teacher, and how it translates."""

    teacher: str | None = field(default=None, metadata={"help": "Encoder-decoder model that translates the text."})
    teacher_source: str | None = field(
        default=None, metadata={"help": "Source language in a teacher of many, as its tokenizer names it."}
    )
    teacher_target: str | None = field(default=None, metadata={"help": "Target language, likewise."})
    num_beams: int = field(default=5, metadata={"help": "Beams of the teacher."})
    batch_tokens: int = field(default=8192, metadata={"help": "Tokens of the sources at once, times the beams."})
    part_size: int = field(default=2000, metadata={"help": "Pairs in a part; a broken run repeats at most so many."})
    workers: int | None = field(
        default=None,
        metadata={"help": "Processes of Ray, here or on the cluster that RAY_ADDRESS names. None: this one."},
    )
    dtype: Literal["float32", "bfloat16", "float16"] = field(default="float32", metadata={"help": "Of the weights."})
    output_dir: str = field(default="runs/distill_translations", metadata={"help": "Folder of the pairs."})

    def __post_init__(self) -> None:
        if self.teacher is None:
            raise ValueError("a teacher translates; give --teacher FOLDER or a name on the Hub")


def choose_languages(tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None) -> dict[str, int]:
    """Set the languages of a tokenizer of many, such as M2M100's, and return what `generate` takes for the target.

    Args:
        source: As the tokenizer names it, such as `"de"`, `"deu_Latn"` or `"de_DE"`. None for both: nothing is set.
    Raises:
        ValueError: If the tokenizer does not have the languages, or one is given without the other.
    """
    if source is None and target is None:
        return {}
    named: Any = tokenizer
    codes = getattr(named, "lang_code_to_token", None)  # M2M100
    if codes is None:  # any word may be a piece of the vocabulary, "de" among them, so that a piece is no language
        roles = {getattr(named, f"{role}_token", None) for role in ("bos", "eos", "unk", "pad", "sep", "cls", "mask")}
        codes = {token: token for token in named.all_special_tokens if token not in roles}
    if not hasattr(named, "src_lang") or source not in codes or target not in codes:
        raise ValueError(
            f"the teacher does not have the languages {source!r} and {target!r}; give two codes of its tokenizer, such "
            f"as {', '.join(list(codes)[:3]) or 'none'}"
        )
    named.src_lang, named.tgt_lang = source, target
    return {"forced_bos_token_id": int(named.convert_tokens_to_ids(codes[target]))}


def main(setup: Setup) -> None:
    """Translate the training text, and write all splits as JSON lines."""
    processes, folder = PartialState(cpu=not torch.accelerator.is_available()), Path(setup.output_dir)
    name = str(setup.teacher)
    tokenizer = AutoTokenizer.from_pretrained(name)
    languages = choose_languages(tokenizer, setup.teacher_source, setup.teacher_target)
    model = AutoModelForSeq2SeqLM.from_pretrained(name, dtype=getattr(torch, setup.dtype)).eval()
    pairs = distill(
        model.to(processes.device),
        tokenizer,
        setup.load(),
        folder / "parts",
        part_size=setup.part_size,
        workers=setup.workers,
        truncate=setup.truncate,
        source_prefix=setup.source_prefix,
        num_beams=setup.num_beams,
        batch_tokens=setup.batch_tokens,
        **languages,
    )
    if processes.is_main_process:
        for split, part in pairs.items():
            part.to_json(folder / f"{split}.jsonl")
        columns = "--source_column source --target_column target"
        print(f"Pairs: {folder}. Next: recipes/train_translation.py --dataset {folder} {columns}")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
