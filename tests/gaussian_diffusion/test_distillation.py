import json
import logging

import pytest
from transformers import AutoModelForSeq2SeqLM, MarianConfig

from hf_targets import choose_languages, distill, encode_pairs, load_pairs, train_joint_bpe, translate
from tests.tiny_seq2seq import SEQ2SEQ_CONFIGS

SETTINGS = {"num_beams": 2, "max_new_tokens": 6}


@pytest.fixture(scope="module")
def teacher():
    pairs = load_pairs(
        "documentation:reversed", source_lang="en", target_lang="reversed", max_train_pairs=11, max_eval_pairs=3
    )
    tokenizer = train_joint_bpe(pairs["train"], 300)
    values = SEQ2SEQ_CONFIGS["marian"]().to_dict() | {"vocab_size": 300, "decoder_vocab_size": 300}
    config = MarianConfig(**{**values, "max_position_embeddings": 400})
    return AutoModelForSeq2SeqLM.from_config(config).eval(), tokenizer, pairs


def run(made, folder, **settings):
    return distill(*made, folder, **{"teacher": "tiny", "part_size": 4, **SETTINGS, **settings})


def test_the_training_text_gets_the_teachers_translations_and_the_rest_stays(teacher, tmp_path):
    model, tokenizer, pairs = teacher
    folder = run(teacher, tmp_path / "out")
    columns = {"source_column": "source", "target_column": "target"}
    found = load_pairs(str(folder), source_lang="en", target_lang="reversed", **columns)
    assert found["train"]["source"][:] == pairs["train"]["source"][:]
    expected = []
    for start in range(0, 11, 4):
        part = pairs["train"].select(range(start, min(start + 4, 11)))
        expected += translate(model, encode_pairs(part, tokenizer), tokenizer, **SETTINGS)
    assert found["train"]["target"][:] == expected
    for split in ("validation", "test"):
        assert found[split].to_dict() == pairs[split].to_dict()


def cut_short(file):
    file.write_text(file.read_text()[:-30])


def change_a_word(file):
    lines = file.read_text().splitlines(keepends=True)
    lines[0] = json.dumps({**json.loads(lines[0]), "target": "another"}) + "\n"
    file.write_text("".join(lines))


def test_a_call_that_was_killed_at_its_first_file_is_repeated(teacher, tmp_path):
    (tmp_path / ".unfinished-abc").mkdir()
    assert (run(teacher, tmp_path) / "train.jsonl").is_file()


def remove(file):
    file.unlink()


@pytest.mark.parametrize("harm", [remove, cut_short, change_a_word])
def test_a_broken_run_goes_on_with_the_parts_that_are_not_whole(teacher, tmp_path, harm, caplog, monkeypatch):
    whole = (run(teacher, tmp_path) / "train.jsonl").read_text()
    parts = sorted((tmp_path / "parts").iterdir())
    assert len(parts) == 3
    harm(parts[1])
    (tmp_path / "train.jsonl").unlink()
    calls = []
    monkeypatch.setattr(
        "hf_targets.gaussian_diffusion.distillation.translate",
        lambda model, encoded, tokenizer, **settings: (
            calls.append(len(encoded)) or translate(model, encoded, tokenizer, **settings)
        ),
    )
    with caplog.at_level(logging.WARNING, "hf_targets"):
        run(teacher, tmp_path)
    assert calls == [4] and (tmp_path / "train.jsonl").read_text() == whole
    assert ("is broken" in caplog.text) == (harm is not remove)


def test_another_teacher_text_or_setting_is_told(teacher, tmp_path):
    run(teacher, tmp_path)
    with pytest.raises(ValueError, match="with other values of teacher; give another folder"):
        run(teacher, tmp_path, teacher="large")
    with pytest.raises(ValueError, match="with other values of settings"):
        run(teacher, tmp_path, num_beams=1)
    model, tokenizer, pairs = teacher
    fewer = {**pairs, "train": pairs["train"].take(5)}
    with pytest.raises(ValueError, match="with other values of num_pairs, text"):
        run((model, tokenizer, fewer), tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="must be empty"):
        run(teacher, tmp_path / "other")
    with pytest.raises(ValueError, match="part_size must be 1 or more, got 0"):
        run(teacher, tmp_path / "new", part_size=0)


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
