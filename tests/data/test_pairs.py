import json
import os
from functools import partial

import datasets
import pytest
from datasets import Dataset, DatasetDict, Features, Translation, Value

from hf_targets.data.corpora import SPLITS
from hf_targets.data.pairs import load_pairs

BEGINS = {"train": "train", "validation": "valid", "test": "test"}


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


@pytest.mark.parametrize(
    ("words", "suffix"),
    [(("train", "valid", "test"), ""), (("train.bpe", "val", "test_2016"), ".gz"), (("train", "dev", "test"), ".xz")],
)
def test_line_n_of_two_files_is_pair_n_in_both_directions(save, words, suffix):
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
    found = rows(load(folder / "some.corpus"))
    assert [pair for split in SPLITS for pair in found[split]] == pairs_of("some", 40)
    assert [len(found[split]) for split in SPLITS] == [36, 2, 2]
    assert rows(load(folder / "some.corpus", max_train_pairs=3)) == {**found, "train": pairs_of("some", 3)}
    few = {split: pairs if split == "train" else pairs[:1] for split, pairs in found.items()}
    assert rows(load(folder / "some.corpus", max_eval_pairs=1)) == few


def test_json_lines_have_a_translation_or_two_columns(save):
    of_languages = [{"translation": {"de": source, "en": target, "fr": ""}} for source, target in pairs_of("a", 40)]
    of_columns = [{"id": 1, "question": source, "paraphrase": target} for source, target in pairs_of("a", 40)]
    by_language = save("l.jsonl", "".join(f"{json.dumps(row)}\n" for row in of_languages))
    by_column = save("c.jsonl.gz", "".join(f"{json.dumps(row)}\n" for row in of_columns))
    named = {"source_column": "question", "target_column": "paraphrase"}
    assert rows(load(by_language)) == rows(load(by_column, "en", "en", **named))
    assert rows(load(by_language))["train"] == pairs_of("a", 40)[:36]
    for word in BEGINS.values():
        folder = save(f"own/{word}.jsonl.gz", f"{json.dumps({'de': word, 'en': word})}\n").parent
    assert rows(load(folder)) == {split: [(word, word)] for split, word in BEGINS.items()}


@pytest.fixture
def data(save, tmp_path, monkeypatch):
    for begin in ("train", "val", "test_2016_flickr", "test_2017_flickr", "train.lc.norm.tok"):
        save_two_files(save, f"multi30k-en-de/{begin}", pairs_of(begin), ".gz")
    for begin in ("train_sample", "valid", "test"):
        save_two_files(save, f"iwslt14-de-en/{begin}", pairs_of(begin), ".gz")
    for begin in ("dev", "test"):
        save_two_files(save, f"opus-multidomain-de-en/law.{begin}", pairs_of(begin), ".gz")
    monkeypatch.setenv("HF_TARGETS_DATA", str(tmp_path))
    return save


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("multi30k", ("train", "val", "test_2016_flickr")),
        ("iwslt14", ("train_sample", "valid", "test")),
        ("iwslt14", ("train", "valid", "test")),
    ],
)
def test_a_known_corpus_is_read_from_its_files_in_both_directions(data, name, begins):
    if name == "iwslt14" and begins[0] == "train":  # which it does not need
        save_two_files(data, "iwslt14-de-en/train", pairs_of("train"))
    expected = {split: pairs_of(begin) for split, begin in zip(SPLITS, begins, strict=True)}
    assert rows(load(name)) == expected
    assert rows(load(name, "en", "de"))["test"] == [(target, source) for source, target in expected["test"]]


def test_a_domain_without_a_train_file_trains_on_its_dev_file(data):
    halved = {"train": pairs_of("dev"), "validation": pairs_of("test")[:1], "test": pairs_of("test")[1:]}
    assert rows(load("opus-multidomain:law")) == halved
    save_two_files(data, "opus-multidomain-de-en/law.train", pairs_of("train"))
    whole = {"train": pairs_of("train"), "validation": pairs_of("dev"), "test": pairs_of("test")}
    assert rows(load("opus-multidomain:law")) == whole


def test_a_known_corpus_in_other_languages_is_refused(data):
    for name in ("multi30k", "asset", "asqa"):
        with pytest.raises(ValueError, match="'fr'"):
            load(name, "de", "fr")
    with pytest.raises(ValueError, match="question and answer"):
        load("asqa", "answer", "question")


def test_a_data_set_has_a_translation_or_a_column_for_each_language_and_null_is_an_empty_text(tmp_path):
    texts = [{"de": source, "en": target} for source, target in [(None, "one"), *pairs_of("a", 39)]]
    feature = Features({"translation": Translation(["de", "en"])})
    Dataset.from_dict({"translation": texts}, features=feature).save_to_disk(tmp_path / "nested")
    flat = Dataset.from_dict({"en": [text["en"] for text in texts], "de": [text["de"] for text in texts]})
    flat.save_to_disk(tmp_path / "flat")
    expected = rows(load(tmp_path / "flat"))
    assert expected["train"] == [("", "one"), *pairs_of("a", 35)]
    assert rows(load(tmp_path / "nested")) == expected
    named = {"source_column": "en", "target_column": "de"}
    assert rows(load(tmp_path / "flat", **named))["train"][1] == pairs_of("a")[0][::-1]


def test_wmt_comes_from_the_hub_with_the_configuration_of_its_languages(monkeypatch):
    asked = []

    def hub(*given):
        asked.append(given)
        if given[0] == "no/where":
            raise ConnectionError("no route")
        texts = {"translation": [{"en": source, "tr": target} for source, target in pairs_of("a")]}
        return DatasetDict({split: Dataset.from_dict(texts) for split in SPLITS})

    monkeypatch.setattr(datasets, "load_dataset", hub)
    assert rows(load("wmt18", "en", "tr"))["test"] == rows(load("some/name", "en", "tr"))["test"] == pairs_of("a")
    assert asked == [("wmt/wmt18", "tr-en"), ("some/name", None)]
    with pytest.raises(ValueError, match="pairs with English"):
        load("wmt14", "de", "fr")
    with pytest.raises(ValueError, match=r"'no/where' is neither a local.*no route"):
        load("no/where")


@pytest.mark.parametrize(
    ("files", "options", "says"),
    [
        ({"train.de": "a\nb\n", "train.en": "a\n"}, {}, "2 and 1 lines"),
        ({"train.de": "a\n" * 9}, {}, "one file for each"),
        ({"train.de": "a", "train.en": "a"}, {"source": "fr", "target": "it"}, "neither"),
        ({"test.de": "a", "test.en": "a"}, {}, "train"),
        ({"train.de": "a\n" * 9, "train.en": "a\n" * 8 + "\n"}, {}, "empty"),
        ({"train.de": "\udce9", "train.en": "a\n" * 9}, {}, "UTF-8"),
        ({"train.jsonl": '{"fr": "a"}\n'}, {}, "has no de and en"),
        ({"train.jsonl": '{"de": "a", "en": "b"}\n{'}, {}, "JSON"),
        ({"train.jsonl": '{"de": "a", "en": ["b"]}\n{"de": "c", "en": []}'}, {}, "row 1"),
        ({"train.jsonl": '{"q": "a"}'}, {"source_column": "q", "target_column": "p"}, "has no q and p"),
        ({"train.jsonl": '{"q": "a"}'}, {"target": "de"}, "two languages"),
    ],
)
def test_files_that_give_no_pairs_are_refused(save, tmp_path, files, options, says):
    for name, content in files.items():
        save(f"own/{name}", content)
    with pytest.raises(ValueError, match=says):
        load(tmp_path / "own", **options)


COLUMNS = {"source_lang": "en", "target_lang": "en", "source_column": "src", "target_column": "trg"}
ASSET = {"source_lang": "orig", "target_lang": "simp"}
SIMPLER = [("It commenced.", ["It began.", "It started."]), ("He perished.", ["He died."]), ("Big.", ["Large.", ""])]


def save_lines(splits, folder):
    for split, rows in splits.items():
        rows.to_json(folder / f"{split}.jsonl")


def references(split):
    return list(zip(split["source"], split["references"], strict=True))


def test_each_of_several_targets_is_a_pair_of_train_and_a_reference_elsewhere(tmp_path):
    for split, pairs in {"train": SIMPLER, "validation": SIMPLER[:2], "test": SIMPLER[:2]}.items():
        columns = {"src": [one for one, _ in pairs], "trg": [several for _, several in pairs]}
        Dataset.from_dict(columns).to_json(tmp_path / "own" / f"{split}.jsonl")
    path = str(tmp_path / "own")
    found = load_pairs(path, **COLUMNS)
    assert rows(found)["train"] == [(source, target) for source, targets in SIMPLER for target in targets]
    assert found["train"].column_names == ["source", "target"]
    assert references(found["test"]) == references(found["validation"]) == SIMPLER[:2]
    assert found["test"]["target"][:] == ["It began.", "He died."]
    for again, restored in ((tmp_path / "saved", found.save_to_disk), (tmp_path / "lines", partial(save_lines, found))):
        restored(again)
        loaded = load_pairs(str(again), **{**COLUMNS, "source_column": "source", "target_column": "target"})
        assert references(loaded["test"]) == SIMPLER[:2] and rows(loaded)["train"] == rows(found)["train"]
    few = load_pairs(path, max_train_pairs=3, max_eval_pairs=1, **COLUMNS)
    assert few["train"]["target"][:] == ["It began.", "It started.", "He died."] and len(few["test"]) == 1


def test_asset_has_ten_simpler_sentences_of_each(tmp_path, monkeypatch):
    folder = tmp_path / "asset"
    folder.mkdir()
    for part, count in (("valid", 40), ("test", 3)):
        texts = {"orig": [f"{part} {n}" for n in range(count)]}
        texts |= {f"simp.{number}": [f"{n} {number}" for n in range(count)] for number in range(10)}
        for end, lines in texts.items():
            (folder / f"asset.{part}.{end}").write_text("\n".join(lines))
    monkeypatch.setenv("HF_TARGETS_DATA", str(tmp_path))
    found = load_pairs("asset", **ASSET)
    assert rows(found)["train"] == [(f"valid {n}", f"{n} {number}") for n in range(38) for number in range(10)]
    assert references(found["validation"]) == [(f"valid {n}", [f"{n} {i}" for i in range(10)]) for n in (38, 39)]
    assert references(found["test"]) == [(f"test {n}", [f"{n} {i}" for i in range(10)]) for n in range(3)]


def test_asqa_has_two_long_answers_of_each_question(save, tmp_path, monkeypatch):
    told = [{"knowledge": [], "long_answer": "In 1900."}, {"knowledge": [{"content": "."}], "long_answer": "Never."}]
    asked = [{"question": f"When {n}?", "qa_pairs": [], "annotations": told} for n in range(3)]
    save("asqa/asqa_dev.jsonl.gz", "".join(f"{json.dumps(row)}\n" for row in asked))
    monkeypatch.setenv("HF_TARGETS_DATA", str(tmp_path))
    found = load_pairs("asqa", source_lang="question", target_lang="answer")
    assert rows(found)["train"] == [("When 0?", "In 1900."), ("When 0?", "Never.")]
    assert references(found["test"]) == [("When 2?", ["In 1900.", "Never."])]


@pytest.mark.skipif("HF_TARGETS_DATA" not in os.environ, reason="HF_TARGETS_DATA names no folder with the corpora")
@pytest.mark.parametrize(
    ("name", "languages", "counts"),
    [
        ("multi30k", "de en", {"train": 29_000, "validation": 1_014, "test": 1_000}),
        ("iwslt14", "de en", {"validation": 7_283, "test": 6_750}),
        ("opus-multidomain:koran", "de en", {"train": 17_982, "validation": 2_000, "test": 2_000}),
        ("asset", "orig simp", {"train": 19_000, "validation": 100, "test": 359}),
        ("asqa", "question answer", {"train": 2 * 854, "validation": 47, "test": 47}),
    ],
)
def test_the_known_corpora_have_their_published_numbers_of_pairs(name, languages, counts):
    pairs = load(name, *languages.split())
    assert {split: len(pairs[split]) for split in counts} == counts
