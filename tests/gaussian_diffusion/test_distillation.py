import copy
import json
import logging
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, MarianConfig, MBartTokenizer, NllbTokenizer

from hf_targets import choose_languages, distill, encode_pairs, load_pairs, train_joint_bpe, translate
from hf_targets.data.pairs import data_set_of
from hf_targets.gaussian_diffusion.teacher_languages import check_prefix
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
    return distill(*made, folder, **{"teacher": "tiny", "part_size": 4, **SETTINGS, **settings})


def test_the_training_text_gets_the_teachers_translations_and_the_rest_stays(teacher, tmp_path):
    model, tokenizer, pairs = teacher
    folder = run(teacher, tmp_path / "out")
    columns = {"source_column": "source", "target_column": "target"}
    found = load_pairs(folder, source_lang="en", target_lang="reversed", **columns)
    assert found["train"]["source"][:] == pairs["train"]["source"][:]
    expected = []
    for start in range(0, 11, 4):
        part = pairs["train"].select(range(start, min(start + 4, 11)))
        expected += translate(model, encode_pairs(part, tokenizer), tokenizer, **SETTINGS)
    assert found["train"]["target"][:] == expected
    for split in ("validation", "test"):
        assert found[split].to_dict() == pairs[split].to_dict()


def test_all_references_of_a_split_that_is_not_translated_stay(teacher, tmp_path):
    model, tokenizer, pairs = teacher
    several = data_set_of([(source, [source, "b"]) for source in pairs["test"]["source"]])
    folder = run((model, tokenizer, {**pairs, "test": several}), tmp_path / "out")
    found = load_pairs(str(folder), source_lang="en", target_lang="en", source_column="source", target_column="target")
    assert found["test"].to_dict() == several.to_dict()
    assert found["validation"].to_dict() == pairs["validation"].to_dict()


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


def test_a_source_that_a_part_has_several_times_is_translated_once(teacher, tmp_path, monkeypatch):
    model, tokenizer, pairs = teacher
    single = run(teacher, tmp_path / "single", part_size=3)
    rows = [0, 1, 0, 2, 2, 1, 0]
    calls = counted_translations(monkeypatch)
    several = run(
        (model, tokenizer, {**pairs, "train": pairs["train"].select(rows)}), tmp_path / "several", part_size=7
    )
    alone, repeated = ((folder / "train.jsonl").read_text().splitlines() for folder in (single, several))
    assert calls == [3] and repeated == [alone[row] for row in rows]


def test_splits_are_those_of_the_last_call_and_another_one_or_no_text_is_told(teacher, tmp_path):
    model, tokenizer, pairs = teacher
    run(teacher, tmp_path)
    run((model, tokenizer, {split: pairs[split] for split in ("train", "test")}), tmp_path)
    assert {file.name for file in tmp_path.glob("*.jsonl")} == {"train.jsonl", "test.jsonl"}
    with pytest.raises(ValueError, match="splits must be train, validation, test, got dev; rename or remove them"):
        run((model, tokenizer, {**pairs, "dev": pairs["test"]}), tmp_path)
    missing = Dataset.from_dict({"source": ["a", "b"], "target": ["c", None]})
    for split, bad, told in (
        ("test", missing, "test must have a text, or a list of texts, as the target in row 1; remove it"),
        ("train", missing.rename_columns({"source": "target", "target": "source"}), "column source must have a text"),
    ):
        with pytest.raises(ValueError, match=told):
            run((model, tokenizer, {**pairs, split: bad}), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    several = Dataset.from_dict({"source": ["a"], "target": [["c", "d"]]})
    folder = run((model, tokenizer, {"train": missing, "test": several}), tmp_path / "new")
    assert json.loads((folder / "test.jsonl").read_text())["target"] == ["c", "d"]


def cut_short(file):
    file.write_text(file.read_text()[:-30])


def change_a_word(file):
    lines = file.read_text().splitlines(keepends=True)
    lines[0] = json.dumps({**json.loads(lines[0]), "target": "another"}) + "\n"
    file.write_text("".join(lines))


def test_a_call_that_was_killed_at_its_first_file_is_repeated_and_what_it_left_is_removed(teacher, tmp_path):
    for left in (".unfinished-abc", "parts/.unfinished-def"):
        if left.startswith("parts"):
            run(teacher, tmp_path)
        (tmp_path / left).mkdir()
        (tmp_path / left / "half.jsonl").write_text("{")
        assert (run(teacher, tmp_path) / "train.jsonl").is_file()
        assert not (tmp_path / left).exists()


def remove(file):
    file.unlink()


@pytest.mark.parametrize("harm", [remove, cut_short, change_a_word])
def test_a_broken_run_goes_on_with_the_parts_that_are_not_whole(teacher, tmp_path, harm, caplog, monkeypatch):
    whole = (run(teacher, tmp_path) / "train.jsonl").read_text()
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) == 3
    harm(parts[1])
    (tmp_path / "train.jsonl").unlink()
    calls = counted_translations(monkeypatch)
    with caplog.at_level(logging.WARNING, "hf_targets"):
        run(teacher, tmp_path)
    assert calls == [4] and (tmp_path / "train.jsonl").read_text() == whole
    assert ("is broken" in caplog.text) == (harm is not remove)


def test_another_teacher_text_or_setting_is_told(teacher, tmp_path):
    run(teacher, tmp_path)
    with pytest.raises(ValueError, match="with other values of teacher; give another folder"):
        run(teacher, tmp_path, teacher="large")
    with pytest.raises(ValueError, match=r"with other values of settings \(num_beams\)"):
        run(teacher, tmp_path, num_beams=1)
    model, tokenizer, pairs = teacher
    fewer = {**pairs, "train": pairs["train"].take(5)}
    with pytest.raises(ValueError, match="with other values of num_pairs, text"):
        run((model, tokenizer, fewer), tmp_path)
    others = copy.deepcopy(model)
    with torch.no_grad():
        others.lm_head.weight.add_(0.1)
    with pytest.raises(ValueError, match="with other values of weights"):
        run((others, tokenizer, pairs), tmp_path)
    with pytest.raises(ValueError, match="with other values of dtype"):
        run((copy.deepcopy(model).bfloat16(), tokenizer, pairs), tmp_path)
    from_another = copy.deepcopy(tokenizer)
    from_another.src_lang = "fr"
    with pytest.raises(ValueError, match="with other values of languages"):
        run((model, from_another, pairs), tmp_path)
    run((model, tokenizer, pairs), tmp_path)
    run((model, tokenizer, pairs), tmp_path, batch_tokens=512)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="must be empty"):
        run(teacher, tmp_path / "other")
    suppressing = copy.deepcopy(model)
    suppressing.generation_config.suppress_tokens = [5]
    with pytest.raises(ValueError, match="with other values of generation"):
        run((suppressing, tokenizer, pairs), tmp_path)
    for wrong in ({"part_size": 0}, {"part_size": 1.5}, {"truncate": "yes"}):
        with pytest.raises(ValueError, match=r"part_size must be an integer, 1 or more|truncate must be True or False"):
            run(teacher, tmp_path / "new", **wrong)


_SHARED = """
import sys
from pathlib import Path
from types import SimpleNamespace
from hf_targets import started_processes
from hf_targets.gaussian_diffusion import distillation
from tests.gaussian_diffusion.test_distillation import make_teacher, run

processes, sizes, translate = started_processes(), [], distillation.translate

def counting(model, pairs, *others, **settings):
    sizes.append(len(pairs))
    return translate(model, pairs, *others, **settings)

distillation.translate = counting
run(make_teacher(), Path(sys.argv[1]) / "out")
Path(sys.argv[1], f"{processes.process_index}.txt").write_text(str(sizes))
trainer = SimpleNamespace(accelerator=processes)
"""


def test_two_processes_share_the_parts(teacher, tmp_path):
    expected = (run(teacher, tmp_path / "one") / "train.jsonl").read_text()
    run_processes(_SHARED, tmp_path / "two")
    assert [(tmp_path / "two" / f"{rank}.txt").read_text() for rank in (0, 1)] == ["[4, 3]", "[4]"]
    assert (tmp_path / "two" / "out" / "train.jsonl").read_text() == expected


def test_a_record_of_an_earlier_version_is_taken_and_one_that_is_none_is_told(teacher, tmp_path):
    file = run(teacher, tmp_path) / "distillation.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({name: whole[name] for name in ("teacher", "settings", "num_pairs", "text")}))
    run(teacher, tmp_path)
    for content in ("{}", file.read_text()[:-20], "[]"):
        file.write_text(content)
        with pytest.raises(ValueError, match=r"distillation\.json is not the record of an earlier call"):
            run(teacher, tmp_path)


def test_targets_that_the_teacher_does_not_read_may_be_of_any_length(teacher, tmp_path):
    model, tokenizer, pairs = teacher
    short = copy.deepcopy(tokenizer)
    short.model_max_length = max(len(tokenizer(text).input_ids) for text in pairs["train"]["source"][:])
    longer = pairs["train"].map(lambda row: {"target": row["target"] * 9})
    expected = (run(teacher, tmp_path / "a") / "train.jsonl").read_text()
    assert (run((model, short, {"train": longer}), tmp_path / "b") / "train.jsonl").read_text() == expected


def test_a_source_beyond_the_teachers_positions_is_told_before_any_translation_or_cut(teacher, tmp_path, caplog):
    model, tokenizer, _ = teacher
    values = model.config.to_dict() | {"max_position_embeddings": 40}
    small = AutoModelForSeq2SeqLM.from_config(MarianConfig(**values)).eval()
    long = Dataset.from_dict({"source": ["a b", "a b " * 30], "target": ["x", "y"]})
    with pytest.raises(ValueError, match="a source must have at most 40 tokens, and 1 of 2 have more"):
        run((small, tokenizer, {"train": long}), tmp_path / "cut", part_size=1)
    assert not (tmp_path / "cut" / "parts").exists()
    with caplog.at_level(logging.INFO, "hf_targets"):  # the way out, in the same folder
        run((small, tokenizer, {"train": long}), tmp_path / "cut", truncate=True)
    assert "1 of 2 sources are cut to 40 tokens" in caplog.text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pairs": {"test": None}}, "the split train, and there is no pair in it, of .'test'"),
        ({"pairs": {"train": Dataset.from_dict({"source": [], "target": []})}}, "there is no pair in it"),
        (
            {"pairs": {"train": Dataset.from_dict({"source": ["a", " "], "target": ["x", "y"]})}},
            "1 of 2 are empty, the first in row 1; remove them with filter_pairs",
        ),
        ({"num_return_sequences": 2}, "one translation of each source"),
        ({"return_dict_in_generate": True}, "one translation of each source"),
        ({"generation_config": GenerationConfig()}, "cannot be written as JSON"),
        ({"source_prefix": ">>xx<<"}, "has no token >>xx<<, of source_prefix='>>xx<<'; leave it out"),
    ],
)
def test_what_cannot_be_distilled_is_told_and_leaves_nothing(teacher, tmp_path, changes, told):
    model, tokenizer, pairs = teacher
    pairs = changes.pop("pairs", pairs)
    with pytest.raises(ValueError, match=told):
        run((model, tokenizer, pairs), tmp_path, **changes)
    assert not any(Path(tmp_path).rglob("part-*")) and not (tmp_path / "train.jsonl").exists()


def test_a_model_without_an_encoder_is_no_teacher(teacher, tmp_path):
    _, tokenizer, pairs = teacher
    with pytest.raises(ValueError, match="GPT2LMHeadModel has no encoder; give a model such as Marian"):
        run((make_backbone("gpt2"), tokenizer, pairs), tmp_path)


def test_a_mark_of_a_language_must_be_a_token(teacher):
    tokenizer = copy.deepcopy(teacher[1])
    tokenizer.add_tokens([">>de<<", ">>fr<<"])
    check_prefix(tokenizer, ">>de<<")
    check_prefix(tokenizer, "translate: ")
    with pytest.raises(ValueError, match=r"no token >>xx<<, .*; give one that it has, such as >>de<<, >>fr<<"):
        check_prefix(tokenizer, ">>xx<< ")


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
    source, target = codes.split()
    chosen = choose_languages(tokenizer, source, target)
    assert tokenizer.convert_ids_to_tokens(chosen["forced_bos_token_id"]) == target
    assert tokenizer.convert_tokens_to_ids(source) in tokenizer("a").input_ids
    for pair in (("de", "en"), ("<s>", "</s>"), (source, "<mask>")):
        with pytest.raises(ValueError, match="does not have the language"):
            choose_languages(tokenizer, *pair)


class OfManyLanguages:
    """What a tokenizer of M2M100 has of languages."""

    src_lang = tgt_lang = None
    lang_code_to_token = {"de": "__de__", "en": "__en__"}  # noqa: RUF012
    unk_token_id = 3

    def convert_tokens_to_ids(self, token):
        return {"__de__": 7, "__en__": 8}.get(token, 3)


def test_languages_are_those_of_the_tokenizer(teacher):
    tokenizer = OfManyLanguages()
    assert choose_languages(tokenizer, "de", "en") == {"forced_bos_token_id": 8}
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("de", "en")
    with pytest.raises(ValueError, match="does not have the language fr; give its tokenizer's codes, such as de, en"):
        choose_languages(tokenizer, "fr", "en")
    with pytest.raises(ValueError, match="needs both of a pair"):
        choose_languages(tokenizer, "de", None)
    assert choose_languages(teacher[1], None, None) == {}
    with pytest.raises(ValueError, match="has no languages to choose from"):
        choose_languages(teacher[1], "de", "en")
