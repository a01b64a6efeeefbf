import gzip
import json
import logging
import lzma
import os

import datasets
import pytest
from datasets import Dataset, DatasetDict, Features, Translation, Value

from hf_targets.data.corpora import SPLITS
from hf_targets.data.pairs import load_pairs

BEGINS = {"train": "train", "validation": "valid", "test": "test"}


@pytest.fixture
def save(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text.encode()
        path.write_bytes({".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)(data))
        return path

    return write


def load(path, source="de", target="en", **options):
    return load_pairs(str(path), source_lang=source, target_lang=target, **options)


def rows(pairs):
    return {split: list(zip(part["source"], part["target"], strict=True)) for split, part in pairs.items()}


def pairs_of(begin, count=2):
    return [(f"{begin} eins {n}", f"{begin} one {n}") for n in range(count)]


def save_two_files(save, begin, pairs, suffix=""):
    for side, lang in enumerate(("de", "en")):
        path = save(f"{begin}.{lang}{suffix}", "".join(f"{pair[side]}\n" for pair in pairs))
    return path.parent


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz"])
@pytest.mark.parametrize(
    "words", [("train", "valid", "test"), ("train.bpe", "val", "test_2016"), ("train", "dev", "test")]
)
def test_line_n_of_two_files_is_pair_n_in_both_directions(save, suffix, words):
    for word in words:
        folder = save_two_files(save, f"own/{word}", pairs_of(word), suffix)
    save("own/README.md", "train test")
    save("own/testament.de", "not test")
    expected = {split: pairs_of(word) for split, word in zip(SPLITS, words, strict=True)}
    found = load(folder)
    assert tuple(found) == SPLITS
    assert found["train"].features == Features({"source": Value("string"), "target": Value("string")})
    assert rows(found) == expected
    assert rows(load(folder, "en", "de")) == {
        split: [(target, source) for source, target in pairs] for split, pairs in expected.items()
    }


def test_only_a_newline_ends_a_line_and_white_space_around_it_is_removed(save):
    lines = ["\ufeff a\r b\r\n", "c\u2028d \x85 e\n", "\n", "f"]
    for begin in BEGINS.values():
        save(f"own/{begin}.en", "1\n2\n3\n4")
        folder = save(f"own/{begin}.de", "".join(lines)).parent
    assert load(folder)["train"]["source"][:] == ["a\r b", "c\u2028d \x85 e", "", "f"]


def test_the_begin_of_two_files_is_split_without_overlap(save):
    folder = save_two_files(save, "own/some.corpus", pairs_of("some", 40), ".gz")
    save_two_files(save, "own/some.corpus.other", pairs_of("other", 40))
    found = rows(load(folder / "some.corpus"))
    assert [pair for split in SPLITS for pair in found[split]] == pairs_of("some", 40)
    assert [len(found[split]) for split in SPLITS] == [36, 2, 2]
    assert rows(load(folder / "some.corpus", max_train_pairs=3)) == {**found, "train": pairs_of("some", 3)}
    few = {split: pairs if split == "train" else pairs[:1] for split, pairs in found.items()}
    assert rows(load(folder / "some.corpus", max_eval_pairs=1)) == few


def test_a_missing_split_is_the_end_of_train_and_the_others_are_whole(save):
    save_two_files(save, "own/train", pairs_of("train", 40))
    folder = save_two_files(save, "own/test", pairs_of("test", 3))
    assert rows(load(folder)) == {
        "train": pairs_of("train", 40)[:38],
        "validation": pairs_of("train", 40)[38:],
        "test": pairs_of("test", 3),
    }


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json_lines_have_a_translation_or_two_columns(save, suffix):
    of_languages = [{"translation": {"de": source, "en": target, "fr": ""}} for source, target in pairs_of("a", 40)]
    of_columns = [{"id": 1, "question": source, "paraphrase": target} for source, target in pairs_of("a", 40)]
    by_language = save(f"l.jsonl{suffix}", "".join(f"{json.dumps(row)}\n" for row in of_languages))
    by_column = save(f"c.jsonl{suffix}", "".join(f"{json.dumps(row)}\n" for row in of_columns))
    named = {"source_column": "question", "target_column": "paraphrase"}
    assert rows(load(by_language)) == rows(load(by_column, "en", "en", **named))
    assert rows(load(by_language))["train"] == pairs_of("a", 40)[:36]
    for word in BEGINS.values():
        folder = save(f"own/{word}.jsonl{suffix}", f"{json.dumps({'de': word, 'en': word})}\n").parent
    assert rows(load(folder)) == {split: [(word, word)] for split, word in BEGINS.items()}


@pytest.fixture
def data(save, tmp_path, monkeypatch):
    for begin in ("train", "val", "test_2016_flickr", "test_2017_flickr", "train.lc.norm.tok"):
        save_two_files(save, f"multi30k-en-de/{begin}", pairs_of(begin), ".gz")
    for begin in ("train_sample", "valid", "test"):
        save_two_files(save, f"iwslt14-de-en/{begin}", pairs_of(begin), ".gz")
    for begin in ("dev", "test"):
        save_two_files(save, f"opus-multidomain-de-en/law.{begin}", pairs_of(begin), ".gz")
    lines = [f"English {n // 2}\tDeutsch {n % 90}\n" for n in range(1200)]
    save("tatoeba-de-en/deu.txt.xz", "".join(lines))
    monkeypatch.setenv("HF_TARGETS_DATA", str(tmp_path))
    return save


def test_multi30k_is_the_raw_text_with_the_test_of_2016(data):
    begins = ("train", "val", "test_2016_flickr")
    expected = {split: pairs_of(begin) for split, begin in zip(SPLITS, begins, strict=True)}
    assert rows(load("multi30k")) == expected
    assert rows(load("multi30k", "en", "de"))["test"] == [(target, source) for source, target in expected["test"]]


def test_iwslt14_trains_on_the_sample_with_a_warning_until_the_whole_is_there(data, caplog):
    with caplog.at_level(logging.WARNING):
        assert rows(load("iwslt14"))["train"] == pairs_of("train_sample")
        assert ["a sample of 2 of its 160,000 pairs" in message for message in caplog.messages] == [True]
        save_two_files(data, "iwslt14-de-en/train", pairs_of("whole"))
        assert rows(load("iwslt14"))["train"] == pairs_of("whole")
    assert len(caplog.messages) == 1


def test_no_sentence_of_tatoeba_is_in_two_splits(save, tmp_path, monkeypatch):
    lines = [f"English {n // 2}\tDeutsch {n % 1100}\tCC-BY\n" for n in range(1200)]
    save("tatoeba-de-en/deu.txt.xz", "".join(lines))
    monkeypatch.setenv("HF_TARGETS_DATA", str(tmp_path))
    found = rows(load("tatoeba"))
    sides = [{split: {pair[side] for pair in found[split]} for split in SPLITS} for side in (0, 1)]
    for texts in sides:
        assert sum(map(len, texts.values())) == len(set().union(*texts.values()))
    assert 1100 < sum(map(len, found.values())) <= 1200
    assert all(len(found[split]) > 5 for split in SPLITS[1:])
    assert all(source.startswith("Deutsch") and target.startswith("English") for source, target in found["test"])
    assert found == rows(load("tatoeba"))


def test_a_domain_without_a_train_file_trains_on_its_dev_file(data):
    halved = {"train": pairs_of("dev"), "validation": pairs_of("test")[:1], "test": pairs_of("test")[1:]}
    assert rows(load("opus-multidomain:law")) == halved
    save_two_files(data, "opus-multidomain-de-en/law.train", pairs_of("train"))
    whole = {"train": pairs_of("train"), "validation": pairs_of("dev"), "test": pairs_of("test")}
    assert rows(load("opus-multidomain:law")) == whole


@pytest.mark.parametrize("name", ["multi30k", "iwslt14", "tatoeba", "opus-multidomain:law"])
def test_a_known_corpus_names_the_way_out_without_its_files_and_in_other_languages(data, monkeypatch, name):
    with pytest.raises(ValueError, match=rf"{name}.* de and en, got 'de' and 'fr'; give source_lang"):
        load(name, "de", "fr")
    with pytest.raises(ValueError, match="no columns"):
        load(name, source_column="a", target_column="b")
    monkeypatch.delenv("HF_TARGETS_DATA")
    with pytest.raises(ValueError, match=rf"{name}.*HF_TARGETS_DATA=None.*put them there"):
        load(name)


@pytest.mark.parametrize("feature", [Translation(["de", "en"]), {"de": Value("string"), "en": Value("string")}])
def test_a_data_set_has_a_translation_or_a_column_for_each_language(tmp_path, feature):
    texts = [{"de": source, "en": target} for source, target in pairs_of("a", 40)]
    nested = Dataset.from_dict({"translation": texts}, features=Features({"translation": feature}))
    flat = Dataset.from_dict({"en": [text["en"] for text in texts], "de": [text["de"] for text in texts]})
    nested.save_to_disk(tmp_path / "nested")
    flat.save_to_disk(tmp_path / "flat")
    written = sorted(tmp_path.rglob("*"))
    expected = rows(load(tmp_path / "flat"))
    assert expected["train"] == pairs_of("a", 40)[:36]
    assert rows(load(tmp_path / "nested")) == expected
    named = {"source_column": "en", "target_column": "de"}
    assert rows(load(tmp_path / "flat", **named))["train"][0] == pairs_of("a")[0][::-1]
    assert sorted(tmp_path.rglob("*")) == written


def test_a_null_is_an_empty_text(tmp_path):
    Dataset.from_dict({"de": ["a", None, "b", "c"], "en": ["d", "e", "f", "g"]}).save_to_disk(tmp_path / "saved")
    assert rows(load(tmp_path / "saved"))["train"] == [("a", "d"), ("", "e")]


@pytest.mark.parametrize(
    ("name", "languages", "asked"),
    [
        ("wmt14", ("de", "en"), ("wmt/wmt14", "de-en")),
        ("wmt18", ("en", "tr"), ("wmt/wmt18", "tr-en")),
        ("some/name", ("de", "en"), ("some/name", None)),
    ],
)
def test_wmt_comes_from_the_hub_with_the_configuration_of_its_languages(monkeypatch, name, languages, asked):
    calls = []

    def hub(*given):
        calls.append(given)
        texts = {"translation": [dict(zip(languages, pair, strict=True)) for pair in pairs_of("a")]}
        return DatasetDict({split: Dataset.from_dict(texts) for split in SPLITS})

    monkeypatch.setattr(datasets, "load_dataset", hub)
    assert rows(load(name, *languages))["test"] == pairs_of("a")
    assert calls == [asked]


def test_wmt_without_english_and_a_name_found_nowhere_are_refused(monkeypatch):
    def fail(*_):
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ValueError, match=r"pairs with English, got 'de' and 'fr'"):
        load("wmt14", "de", "fr")
    with pytest.raises(ValueError, match=r"'no/where' is neither a local.*no route"):
        load("no/where")


@pytest.mark.parametrize(
    ("files", "options", "says"),
    [
        ({"train.de": "a\nb\n", "train.en": "a\n"}, {}, r"train\.de has 2 lines where .*train\.en has 1"),
        ({"train.de": "a\n" * 9}, {}, r"train\.de and train\.en .*has \['train\.de'\]; add the other"),
        ({"train.de": "a", "train.de.gz": "a", "train.en": "a"}, {}, "remove what is there twice"),
        ({"train.de": "a", "train.en": "a"}, {"source": "fr", "target": "it"}, r"'fr' or 'it'.*\['de', 'en'\]"),
        ({"train.de": "a", "train.en": "a"}, {"source_column": "x", "target_column": "y"}, "plain text; leave them"),
        ({"train.de": "a", "train.en": "a"}, {"config_name": "x"}, "leave it out, got config_name='x'"),
        ({"train.de": "a", "train.en": "a", "train.tok.de": "a"}, {}, r"for train .* has \['train', 'train\.tok'\]"),
        ({"test.de": "a", "test.en": "a"}, {}, r"needs the split train.*\['test'\]"),
        ({"train.de": "a\n" * 9, "train.en": "a\n" * 9, "valid.de": "", "valid.en": ""}, {}, "validation .* has none"),
        ({"train.de": "a\n" * 9, "train.en": "a\n" * 8 + "\n"}, {}, "1 targets of test .* empty, the first in row 0"),
        ({"train.jsonl": "{}\n"}, {}, r"line 1 of .*train\.jsonl has no language 'de' and 'en'; it has \[\]"),
        ({"train.jsonl": "[]\n"}, {}, r"line 1 .* must be a mapping"),
        ({"train.jsonl": '{"de": "a", "en": "b"}\n{'}, {}, r"line 2 .* must be JSON"),
        ({"train.jsonl": "[" * 100_000}, {}, r"line 1 .* must be JSON"),
        ({"train.jsonl": '{"de": "\\ud800", "en": "b"}'}, {}, r"line 1 .* must have whole letters, got half of one"),
        ({"train.jsonl": '{"de": "a", "en": null}'}, {}, r"line 1 .* two texts, .* got 'a' and None"),
        ({"train.jsonl": '{"translation": "a"}'}, {}, "map languages to texts, got 'a'"),
        ({"train.jsonl": '{"q": "a"}'}, {"source_column": "q", "target_column": "p"}, r"no column 'p'; it has \['q'\]"),
    ],
)
def test_files_that_give_no_pairs_are_refused(save, tmp_path, files, options, says):
    for name, content in files.items():
        save(f"own/{name}", content)
    with pytest.raises(ValueError, match=says):
        load(tmp_path / "own", **options)


def test_an_empty_source_of_test_is_kept(save):
    save_two_files(save, "own/train", pairs_of("train", 40))
    folder = save_two_files(save, "own/test", [("", "target"), ("source", "target")])
    assert rows(load(folder))["test"] == [("", "target"), ("source", "target")]


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_damaged_file_is_refused_by_name(save, suffix):
    folder = save_two_files(save, "own/train", pairs_of("train", 40), suffix)
    path = folder / f"train.en{suffix}"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=rf"must be whole, and .*train\.en\{suffix}"):
        load(folder)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"source_column": "a"}, "together or not at all, got 'a' and None"),
        ({"target": "de"}, "two languages or two columns, got 'de' twice"),
        ({"max_train_pairs": 0}, "max_train_pairs must be at least 1, got 0"),
        ({"max_eval_pairs": 0}, "max_eval_pairs must be at least 1, got 0"),
    ],
)
def test_options_that_say_nothing_are_refused(options, says):
    with pytest.raises(ValueError, match=says):
        load("multi30k", **options)


def test_columns_of_a_data_set_that_are_missing_or_no_text_are_answered_with_those_that_are(tmp_path):
    Dataset.from_dict({"translation": [{"de": "a", "en": "b"}], "id": [1]}).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"train of .* no language 'fr'; it has \['de', 'en'\]"):
        load(tmp_path / "saved", "fr", "en")
    with pytest.raises(ValueError, match=r"no column 'x'; it has \['translation', 'id'\]"):
        load(tmp_path / "saved", source_column="x", target_column="id")
    with pytest.raises(ValueError, match=r"translation must be a column of texts"):
        load(tmp_path / "saved", source_column="translation", target_column="id")


def test_a_single_file_that_is_not_json_lines_is_refused(save):
    with pytest.raises(ValueError, match=r"ends with \.jsonl .* the common begin"):
        load(save("own/train.de", "a"))


@pytest.mark.skipif("HF_TARGETS_DATA" not in os.environ, reason="HF_TARGETS_DATA names no folder with the corpora")
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("multi30k", {"train": 29_000, "validation": 1_014, "test": 1_000}),
        ("iwslt14", {"validation": 7_283, "test": 6_750}),
        ("opus-multidomain:koran", {"train": 17_982, "validation": 2_000, "test": 2_000}),
    ],
)
def test_the_known_corpora_have_their_published_numbers_of_pairs(name, counts):
    pairs = load(name)
    assert {split: len(pairs[split]) for split in counts} == counts
