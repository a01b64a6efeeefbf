import gzip
import os
import re
import subprocess
import sys

import datasets
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets.data import corpora
from hf_targets.data.corpora import SPLITS, load_corpus
from hf_targets.data.documentation import documentation_documents

LINES = [f"line {number}\n" for number in range(40)]


@pytest.fixture(scope="session")
def documentation():
    return load_corpus("documentation")


@pytest.fixture
def save(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        data = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def rows(corpus):
    return {split: list(corpus[split]["text"]) for split in corpus}


def text(corpus, split):
    return "".join(corpus[split]["text"])


def paragraphs(corpus, split):
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text(corpus, split)) if part.strip()]


@pytest.mark.parametrize("topics_only", [False, True], ids=["all", "topics"])
def test_the_documentation_has_words_in_each_split_and_most_in_train(documentation, topics_only):
    corpus = load_corpus("documentation:topics") if topics_only else documentation
    words = {split: len(text(corpus, split).split()) for split in SPLITS}
    total = sum(words.values())
    assert total > (30_000 if topics_only else 150_000)
    assert 0.7 < words["train"] / total < 0.9
    assert all(0.04 < words[split] / total < 0.2 for split in ("validation", "test"))


def test_no_paragraph_of_the_documentation_is_there_twice(documentation):
    every = [paragraph for split in SPLITS for paragraph in paragraphs(documentation, split)]
    assert len(every) == len(set(every))


def test_the_topics_are_the_same_split_alone_and_in_the_whole_documentation(documentation):
    for split, alone in rows(load_corpus("documentation:topics")).items():
        assert rows(documentation)[split][: len(alone)] == alone


def test_a_corpus_is_one_text_column_of_rows_that_end_with_a_newline(documentation):
    assert isinstance(documentation, DatasetDict)
    assert tuple(documentation) == SPLITS
    for split in SPLITS:
        assert documentation[split].features == datasets.Features({"text": datasets.Value("string")})
        assert all(row.endswith("\n") and row.strip() for row in documentation[split]["text"])


def test_the_documentation_does_not_depend_on_the_hash_seed(documentation):
    program = (
        "import sys; from hf_targets.data.corpora import load_corpus;"
        "sys.stdout.buffer.write(''.join(load_corpus('documentation:topics')['validation']['text']).encode())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    alone = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=True).stdout
    assert alone and text(documentation, "validation").encode().startswith(alone)


def test_the_documentation_is_read_without_importing_and_leaves_out_tests_and_short_docstrings(monkeypatch, save):
    long = " ".join(["word"] * 20)
    source = f"""raise SystemExit
def f():
    '{long} of f'
class A:
    'short'
    def g(self):
        '{long} of g'
"""
    library = save("b.py", source).parent
    save("a/__init__.py", f'"""{long} of a"""')
    for skipped in ("test/t.py", "a/tests/t.py", "site-packages/t.py", "a/__pycache__/t.py"):
        save(skipped, f'"""{long} of {skipped}"""')
    save("broken.py", "def (")
    monkeypatch.setattr(corpora.sysconfig, "get_path", lambda name: str(library))
    modules = [document for document in documentation_documents() if not document[0].startswith("pydoc_data.topics/")]
    assert modules == [("a/__init__.py", f"{long} of a"), ("b.py", f"{long} of f\n\n{long} of g")]


def test_a_python_without_its_documentation_is_told_what_to_give_instead(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match=r"pydoc_data.*your own text"):
        load_corpus()


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".md"])
def test_one_file_is_split_without_overlap_into_its_first_nine_tenths_and_the_rest(save, suffix):
    corpus = rows(load_corpus(str(save(f"own{suffix}", "".join(LINES)))))
    assert [row for split in SPLITS for row in corpus[split]] == LINES
    assert [len(corpus[split]) for split in SPLITS] == [36, 2, 2]


@pytest.mark.parametrize(
    "names", [("train", "valid", "test"), ("x.train", "x.validation", "x.test"), ("train", "dev", "test")]
)
@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_a_folder_gives_each_split_from_the_file_of_that_name(save, names, suffix):
    for name in names:
        folder = save(f"own/{name}{suffix}", f"\ufeff  first of {name} \r\n\n\u2028 last").parent
    save("own/README.md", "train test")
    assert rows(load_corpus(str(folder))) == {
        split: [f"  first of {name} \n", "\n", "\u2028 last\n"] for split, name in zip(SPLITS, names, strict=True)
    }


@pytest.mark.parametrize("name", ["ptb", "wikitext-2"])
def test_a_benchmark_comes_from_the_folder_that_the_environment_names_line_by_stripped_line(save, monkeypatch, name):
    for split in ("train", "valid", "test"):
        data = save(f"{name}/{name}.{split}.txt.gz", f" the {split} \n \n end ").parent.parent
    monkeypatch.setenv("HF_TARGETS_DATA", str(data))
    assert rows(load_corpus(name))["validation"] == ["the valid\n", "\n", "end\n"]


def test_without_local_data_wikitext_comes_from_the_hub_and_ptb_names_the_way_out(monkeypatch):
    asked = []

    def hub(*name):
        asked.append(name)
        return DatasetDict({split: Dataset.from_dict({"text": ["", " = A = \n"]}) for split in SPLITS})

    monkeypatch.setattr(datasets, "load_dataset", hub)
    monkeypatch.delenv("HF_TARGETS_DATA", raising=False)
    assert rows(load_corpus("wikitext-2"))["test"] == ["\n", "= A =\n"]
    assert asked == [("Salesforce/wikitext", "wikitext-2-v1")]
    with pytest.raises(ValueError, match=r"'ptb'.*HF_TARGETS_DATA=None.*ptb\.train\.txt"):
        load_corpus("ptb")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_lm1b_sample_trains_on_its_dev_file_and_halves_its_test_file(save, monkeypatch, suffix):
    save(f"lm1b-sample/1b_benchmark.dev.tokens{suffix}", " a b .\nc d .")
    for junk in (".DS_Store", "._1b_benchmark.dev.tokens.gz", "1b_benchmark.train.tokens.gz", "README.md"):
        save(f"lm1b-sample/{junk}", b"\xff")
    data = save(f"lm1b-sample/1b_benchmark.test.tokens{suffix}", "1 .\n2 . \n3 .\n4 .\n5 .\n").parent.parent
    monkeypatch.setenv("HF_TARGETS_DATA", str(data))
    assert rows(load_corpus("lm1b-sample")) == {
        "train": ["a b .\n", "c d .\n"],
        "validation": ["1 .\n", "2 .\n"],
        "test": ["3 .\n", "4 .\n", "5 .\n"],
    }
    assert rows(load_corpus("lm1b-sample", max_train_words=2))["train"] == ["a b\n"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ([], r"\[\]; put them there"),
        (["1b_benchmark.dev.tokens.gz"], r"one each of 1b_benchmark\.dev.*there \['1b_benchmark\.dev\.tokens\.gz'\]"),
        (["1b_benchmark.dev.tokens", "1b_benchmark.dev.tokens.gz", "1b_benchmark.test.tokens"], "one each"),
    ],
)
def test_an_lm1b_sample_that_lacks_a_file_or_has_one_twice_is_refused(save, tmp_path, monkeypatch, files, says):
    for name in files:
        save(f"lm1b-sample/{name}", "a .\n" * 4)
    monkeypatch.setenv("HF_TARGETS_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=says):
        load_corpus("lm1b-sample")


def test_without_local_data_the_lm1b_sample_names_the_way_out(save, monkeypatch):
    for split in ("dev", "test"):
        folder = save(f"lm1b-sample/1b_benchmark.{split}.tokens", "a .\n" * 4).parent.parent
    monkeypatch.chdir(folder)  # nor is it found where Python happens to run
    monkeypatch.delenv("HF_TARGETS_DATA", raising=False)
    with pytest.raises(ValueError, match=r"HF_TARGETS_DATA=None and there \[\]; put them there"):
        load_corpus("lm1b-sample")


def test_a_domain_of_opus_trains_on_its_train_file_or_else_on_its_dev_file(save, monkeypatch):
    for part in ("dev", "test"):
        data = save(f"opus-multidomain-de-en/law.{part}.en.gz", f"{part} 1\n{part} 2\n").parent.parent
        save(f"opus-multidomain-de-en/law.{part}.de.gz", "eins\nzwei\n")
    monkeypatch.setenv("HF_TARGETS_DATA", str(data))
    halved = {"train": ["dev 1\n", "dev 2\n"], "validation": ["test 1\n"], "test": ["test 2\n"]}
    assert rows(load_corpus("opus-multidomain:law")) == halved
    save("opus-multidomain-de-en/law.train.en", "train 1\n")
    assert rows(load_corpus("opus-multidomain:law")) == {
        "train": ["train 1\n"],
        "validation": ["dev 1\n", "dev 2\n"],
        "test": ["test 1\n", "test 2\n"],
    }
    with pytest.raises(ValueError, match=r"one each of poems\.dev\.en\(\.gz\|\.xz\) and poems\.test\.en"):
        load_corpus("opus-multidomain:poems")


def test_the_legal_text_is_read_from_its_paragraphs(save, monkeypatch):
    for part in ("train", "valid", "test"):
        data = save(f"us-code-legal/paragraphs.{part}.txt.gz", f"{part} 1\n").parent.parent
    monkeypatch.setenv("HF_TARGETS_DATA", str(data))
    splits = {"train": ["train 1\n"], "validation": ["valid 1\n"], "test": ["test 1\n"]}
    assert rows(load_corpus("us-code-legal")) == splits


@pytest.mark.parametrize("given_splits", [("train",), ("train", "test"), ("train", "validation"), SPLITS])
def test_missing_splits_are_carved_from_the_end_of_train(tmp_path, given_splits):
    parts = {
        split: Dataset.from_dict({"body": [f"{split} {n}" for n in range(40)], "id": range(40)})
        for split in given_splits
    }
    DatasetDict(parts).save_to_disk(tmp_path / "saved")
    written = sorted(tmp_path.rglob("*"))
    corpus = rows(load_corpus(str(tmp_path / "saved"), text_column="body"))
    assert sorted(tmp_path.rglob("*")) == written
    carved = [split for split in SPLITS if split not in given_splits]
    assert [row for split in ("train", *carved) for row in corpus[split]] == [f"train {n}\n" for n in range(40)]
    assert all(len(corpus[split]) == (2 if split in carved else 40) for split in SPLITS[1:])


def test_a_single_saved_data_set_is_carved_and_a_null_is_a_blank_row(tmp_path):
    Dataset.from_dict({"text": ["a", None, "b\n", "c"]}).save_to_disk(tmp_path / "saved")
    corpus = load_corpus(str(tmp_path / "saved"))
    assert rows(corpus) == {"train": ["a\n", "\n"], "validation": ["b\n"], "test": ["c\n"]}


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.text(st.sampled_from("ab \t\n\x1cé"), max_size=12).map(lambda row: row + "\n"), min_size=1),
    count=st.integers(1, 30),
)
def test_cut_rows_are_the_beginning_of_the_text_up_to_so_many_words(texts, count):
    whole, kept = "".join(texts), corpora._first_words(texts, count)
    cut = "".join(kept)
    assert whole.startswith(cut.removesuffix("\n"))
    assert cut.split() == whole.split()[:count]
    assert all(row.endswith("\n") for row in kept)


def test_only_train_is_cut_to_a_number_of_words(save):
    path = str(save("own.txt", "".join(LINES)))
    whole, cut = rows(load_corpus(path)), rows(load_corpus(path, max_train_words=5))
    assert cut == {**whole, "train": ["line 0\n", "line 1\n", "line\n"]}


def test_a_folder_of_another_format_is_a_data_set_and_loads_without_a_word(save, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = save("own/train.jsonl", "".join(f'{{"body": "line {n}", "id": {n}}}\n' for n in range(40))).parent
    hidden = datasets.are_progress_bars_disabled()
    corpus = rows(load_corpus(str(folder), text_column="body"))
    assert [row for split in SPLITS for row in corpus[split]] == LINES
    assert capfd.readouterr() == ("", "")
    assert datasets.are_progress_bars_disabled() is hidden


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"own.txt": b"caf\xe9\n" * 9}, r"UTF-8.*own\.txt"),
        ({"own.txt": ""}, r"carved from it, and .* has 0"),
        ({"own.txt": " \n" * 40}, "needs words, and train"),
        ({"own.txt": "a\n" * 39 + "\n" * 2}, "needs words, and test"),
        ({"own.txt": "a\nb\n"}, r"carved from it, and .* has 2"),
        ({"own/train.txt": "a", "own/test.txt": "a"}, r"one file .* for validation, named with valid or dev, .*\[\]"),
        (
            {"own/train.txt": "a", "own/valid.txt": "a", "own/test.txt": "a", "own/b.test.txt": "a"},
            r"for test.*b\.test",
        ),
        ({"own/train_test.txt": "a", "own/valid.txt": "a"}, "for test"),
        ({"own/train.txt": "a", "own/valid.txt": "", "own/test.txt": "a"}, "needs words, and validation"),
    ],
)
def test_text_that_gives_no_three_splits_is_refused(save, tmp_path, files, says):
    for name, content in files.items():
        save(name, content)
    with pytest.raises(ValueError, match=says):
        load_corpus(str(tmp_path / next(iter(files)).split("/")[0]))


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: b"text" + data, lambda data: data[:40] + b"?" + data[41:]]
)
def test_a_damaged_gzip_file_is_refused_by_name(tmp_path, damage):
    path = tmp_path / "own.txt.gz"
    path.write_bytes(damage(gzip.compress("".join(LINES).encode())))
    with pytest.raises(ValueError, match=r"must be whole, and .*own\.txt\.gz"):
        load_corpus(str(path))


def test_a_column_that_is_not_there_is_answered_with_those_that_are(tmp_path):
    Dataset.from_dict({"body": ["a"], "id": [1]}).save_to_disk(tmp_path / "saved")
    for column in ("text", "id"):
        with pytest.raises(ValueError, match=rf"text_column.*'{column}'.*\['body', 'id'\]"):
            load_corpus(str(tmp_path / "saved"), text_column=column)


def test_a_data_set_without_train_is_refused(tmp_path):
    DatasetDict({"test": Dataset.from_dict({"text": ["a"]})}).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match=r"needs the split train.*\['test'\]"):
        load_corpus(str(tmp_path / "saved"))


@pytest.mark.parametrize("error", [ConnectionError("no route"), FileNotFoundError("no such"), ValueError("Config")])
def test_a_name_found_nowhere_says_that_both_places_were_tried(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(
        ValueError, match=rf"'some/name' is neither a local .* Hub .*{error}.*config_name='x'"
    ) as caught:
        load_corpus("some/name", config_name="x")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("options", [{"config_name": "x"}, {"text_column": "body"}])
def test_options_of_data_sets_are_refused_for_plain_text(options):
    with pytest.raises(ValueError, match="plain text; leave them out"):
        load_corpus("documentation:topics", **options)


def test_a_configuration_of_a_saved_data_set_and_a_budget_of_no_words_are_refused(tmp_path):
    Dataset.from_dict({"text": LINES}).save_to_disk(tmp_path / "saved")
    with pytest.raises(ValueError, match="no configurations, got 'x'"):
        load_corpus(str(tmp_path / "saved"), config_name="x")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        load_corpus(max_train_words=0)
