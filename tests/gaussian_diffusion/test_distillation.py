import copy
import errno

import pytest
import torch
from datasets import Dataset
from datasets.arrow_writer import ArrowWriter
from transformers import AutoModelForSeq2SeqLM, MarianConfig, MBartTokenizer, NllbTokenizer

from hf_targets import distill, encode_pairs, load_pairs, train_joint_bpe, translate
from tests.tiny_backbones import make_backbone
from tests.tiny_seq2seq import SEQ2SEQ_CONFIGS
from tests.trainer_runs import run_processes

SETTINGS = {"num_beams": 2, "max_new_tokens": 6}


def make_teacher():
    """Return a tiny teacher with random weights, always the same, its tokenizer, and pairs."""
    pairs = load_pairs(
        "documentation:reversed", source_lang="en", target_lang="reversed", max_train_pairs=11, max_eval_pairs=3
    )
    tokenizer = train_joint_bpe(pairs["train"], 300)
    values = SEQ2SEQ_CONFIGS["marian"]().to_dict() | {"vocab_size": 300, "decoder_vocab_size": 300}
    config = MarianConfig(**{**values, "max_position_embeddings": 400})
    torch.manual_seed(0)
    return AutoModelForSeq2SeqLM.from_config(config).eval(), tokenizer, pairs


@pytest.fixture(scope="module")
def teacher():
    return make_teacher()


def run(made, folder, **settings):
    return distill(*made, folder, **{"part_size": 4, **SETTINGS, **settings})


def counted_translations(monkeypatch):
    """Return a list that gets the number of sources of each call of `translate`."""
    calls = []
    monkeypatch.setattr(
        "hf_targets.gaussian_diffusion.distillation.translate",
        lambda model, encoded, tokenizer, **settings: (
            calls.append(len(encoded)) or translate(model, encoded, tokenizer, **settings)
        ),
    )
    return calls


def test_the_training_text_gets_the_teachers_translations_and_the_rest_stays(teacher, tmp_path):
    model, tokenizer, pairs = teacher
    found = run(teacher, tmp_path)
    assert found["train"]["source"][:] == pairs["train"]["source"][:]
    expected = []
    for start in range(0, 11, 4):
        part = pairs["train"].select(range(start, min(start + 4, 11)))
        expected += translate(model, encode_pairs(part, tokenizer), tokenizer, **SETTINGS)
    assert found["train"]["target"][:] == expected
    for split in ("validation", "test"):
        assert found[split].to_dict() == pairs[split].to_dict()


def test_a_source_that_a_part_has_several_times_is_translated_once(teacher, tmp_path, monkeypatch):
    model, tokenizer, pairs = teacher
    alone = run(teacher, tmp_path, part_size=3)["train"]["target"]
    rows, calls = [0, 1, 0, 2, 2, 1, 0], counted_translations(monkeypatch)
    repeated = run((model, tokenizer, {"train": pairs["train"].select(rows)}), tmp_path, part_size=7)
    assert calls == [3] and repeated["train"]["target"][:] == [alone[row] for row in rows]


def test_a_broken_call_goes_on_with_the_parts_that_are_missing(teacher, tmp_path, monkeypatch):
    def fill_disk(writer, *_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(ArrowWriter, "finalize", fill_disk)
        run(teacher, tmp_path)
    assert not list(tmp_path.iterdir())
    calls = counted_translations(monkeypatch)
    whole = run(teacher, tmp_path)["train"].to_dict()
    assert calls == [4, 4, 3]
    next(tmp_path.glob("*.arrow")).unlink()
    assert run(teacher, tmp_path)["train"].to_dict() == whole
    assert len(calls) == 4


def test_another_teacher_text_or_setting_is_translated_anew(teacher, tmp_path, monkeypatch):
    model, tokenizer, pairs = teacher
    one = {"train": pairs["train"].take(4)}
    run((model, tokenizer, one), tmp_path)
    calls = counted_translations(monkeypatch)
    other, suppressing, from_another = copy.deepcopy(model), copy.deepcopy(model), copy.deepcopy(tokenizer)
    with torch.no_grad():
        other.lm_head.weight.add_(0.1)
    suppressing.generation_config.suppress_tokens = [5]
    from_another.src_lang = "fr"
    for changed in ((other, tokenizer), (suppressing, tokenizer), (model, from_another)):
        run((*changed, one), tmp_path)
    run((model, tokenizer, one), tmp_path, num_beams=1)
    run((model, tokenizer, {"train": pairs["train"].select([1, 2, 3, 4])}), tmp_path)
    assert len(calls) == 5
    run((model, tokenizer, one), tmp_path)
    assert len(calls) == 5


_SHARED = """
import sys
from pathlib import Path
from types import SimpleNamespace
import torch
from accelerate import PartialState
from hf_targets.gaussian_diffusion import distillation
from tests.gaussian_diffusion.test_distillation import make_teacher, run

processes = PartialState(cpu=not torch.accelerator.is_available())
sizes, translate = [], distillation.translate

def counting(model, pairs, *others, **settings):
    sizes.append(len(pairs))
    return translate(model, pairs, *others, **settings)

distillation.translate = counting
found = run(make_teacher(), Path(sys.argv[1]) / "out")
Path(sys.argv[1], f"{processes.process_index}.txt").write_text(str([sizes, found["train"]["target"][:]]))
trainer = SimpleNamespace(accelerator=processes)  # which the program's end waits for
"""


def test_two_processes_share_the_parts(teacher, tmp_path):
    expected = run(teacher, tmp_path / "one")["train"]["target"][:]
    run_processes(_SHARED, tmp_path / "two")
    found = [(tmp_path / "two" / f"{rank}.txt").read_text() for rank in (0, 1)]
    assert found == [str([[4, 3], expected]), str([[4], expected])]


def test_a_source_beyond_the_teachers_positions_is_told_before_any_translation_or_cut(teacher, tmp_path):
    model, tokenizer, _ = teacher
    values = model.config.to_dict() | {"max_position_embeddings": 40}
    small = AutoModelForSeq2SeqLM.from_config(MarianConfig(**values)).eval()
    long = Dataset.from_dict({"source": ["a b", "a b " * 30], "target": ["x", "y" * 999]})
    with pytest.raises(ValueError, match="at most 40 tokens"):
        run((small, tokenizer, {"train": long}), tmp_path, part_size=1)
    assert not any(tmp_path.iterdir())
    assert len(run((small, tokenizer, {"train": long}), tmp_path, truncate=True)["train"]) == 2


def test_a_model_without_an_encoder_and_a_mark_that_is_no_token_are_refused(teacher, tmp_path):
    _, tokenizer, pairs = teacher
    with pytest.raises(ValueError, match="encoder"):
        run((make_backbone("gpt2"), tokenizer, pairs), tmp_path)
    with pytest.raises(ValueError, match=">>xx<<"):
        run(teacher, tmp_path, source_prefix=">>xx<<")


@pytest.mark.parametrize(
    ("splits", "settings", "word"),
    [
        (("validation",), {}, "split train, got .*validation"),
        (("train",), {"part_size": 0}, "part_size"),
        (("train",), {"part_size": 2.5}, "part_size"),
        (("train",), {"num_beams": 0}, "num_beams"),
        (("train",), {"num_beams": None}, "num_beams"),
    ],
)
def test_wrong_splits_and_settings_are_told(splits, settings, word, teacher, tmp_path):
    model, tokenizer, pairs = teacher
    with pytest.raises(ValueError, match=word):
        run((model, tokenizer, {split: pairs[split] for split in splits}), tmp_path, **settings)
    assert not any(tmp_path.iterdir())


def test_a_training_split_must_have_a_row_when_sources_are_cut_too(teacher, tmp_path):
    model, tokenizer, pairs = teacher
    for truncate in (False, True):
        with pytest.raises(ValueError, match="must have a row"):
            run((model, tokenizer, {"train": pairs["train"].take(0)}), tmp_path, truncate=truncate)


PIECES = ["<s>", "<pad>", "</s>", "<unk>", "de", "en", "a"]
"""Of a vocabulary in which names of languages are words, as in any large one."""


@pytest.mark.parametrize(
    ("tokenizer", "codes"),
    [
        (NllbTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)}, merges=[]), "deu_Latn eng_Latn"),
        (MBartTokenizer(vocab=[(piece, -1.0 * (number > 3)) for number, piece in enumerate(PIECES)]), "de_DE en_XX"),
    ],
)
def test_a_word_of_the_vocabulary_is_no_language(tokenizer, codes):
    from distill_translations import choose_languages  # not for the processes that import this file

    source, target = codes.split()
    chosen = choose_languages(tokenizer, source, target)
    assert tokenizer.convert_ids_to_tokens(chosen["forced_bos_token_id"]) == target
    assert tokenizer.convert_tokens_to_ids(source) in tokenizer("a").input_ids
    for pair in (("de", "en"), ("<s>", "</s>"), (source, "<mask>")):
        with pytest.raises(ValueError, match="does not have the languages"):
            choose_languages(tokenizer, *pair)


class OfManyLanguages:
    """What a tokenizer of M2M100 has of languages."""

    src_lang = tgt_lang = None
    lang_code_to_token = {"de": "__de__", "en": "__en__"}  # noqa: RUF012
    unk_token_id = 3

    def convert_tokens_to_ids(self, token):
        return {"__de__": 7, "__en__": 8}.get(token, 3)


def test_languages_are_those_of_the_tokenizer(teacher):
    from distill_translations import choose_languages  # not for the processes that import this file

    tokenizer = OfManyLanguages()
    assert choose_languages(tokenizer, "de", "en") == {"forced_bos_token_id": 8}
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("de", "en")
    assert choose_languages(teacher[1], None, None) == {}
    for one, pair in ((tokenizer, ("fr", "en")), (tokenizer, ("de", None)), (teacher[1], ("de", "en"))):
        with pytest.raises(ValueError, match="languages"):
            choose_languages(one, *pair)
