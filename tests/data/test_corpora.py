import gzip
import lzma
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import datasets
import pytest
from datasets import Dataset, DatasetDict

from hf_targets.data import documentation as documentation_module
from hf_targets.data.corpora import SPLITS, load_corpus
from hf_targets.data.documentation import documentation_documents
from tests.programs import run_program

LINES = [f"line {number}\n" for number in range(40)]


def rows(corpus):
    return {split: list(corpus[split]["text"]) for split in corpus}


def text(corpus, split):
    return "".join(corpus[split]["text"])


def test_the_documentation_has_each_paragraph_once_in_rows_of_one_column_most_of_them_in_train(monkeypatch, tmp_path):
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-d]*.py")):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(documentation_module.sysconfig, "get_path", lambda name: str(tmp_path))
    documentation = load_corpus("documentation")
    assert isinstance(documentation, DatasetDict) and tuple(documentation) == SPLITS
    words, every = {}, []
    for split in SPLITS:
        whole = "".join(documentation[split]["text"])
        words[split] = len(whole.split())
        every += [" ".join(part.split()) for part in re.split(r"\n\s*\n", whole) if part.strip()]
        assert documentation[split].features == datasets.Features({"text": datasets.Value("string")})
        assert all(row.endswith("\n") and row.strip() for row in documentation[split]["text"])
    total = sum(words.values())
    assert total > 70_000 and 0.7 < words["train"] / total < 0.9
    assert all(0.04 < words[split] / total < 0.2 for split in ("validation", "test"))
    assert len(every) == len(set(every))
    for split, alone in rows(load_corpus("documentation:topics")).items():
        assert rows(documentation)[split][: len(alone)] == alone


def test_the_documentation_does_not_depend_on_the_hash_seed():
    program = (
        "import sys; from hf_targets.data.corpora import load_corpus;"
        "sys.stdout.buffer.write(''.join(load_corpus('documentation:topics')['validation']['text']).encode())"
    )
    alone = run_program(program).stdout
    assert alone and text(load_corpus("documentation:topics"), "validation") == alone


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
    monkeypatch.setattr(documentation_module.sysconfig, "get_path", lambda name: str(library))
    modules = [document for document in documentation_documents() if not document[0].startswith("pydoc_data.topics/")]
    assert modules == [("a/__init__.py", f"{long} of a"), ("b.py", f"{long} of f\n\n{long} of g")]


def test_a_python_without_its_documentation_is_told_what_to_give_instead(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(ValueError, match=r"pydoc_data.*your own text"):
        load_corpus()


def test_only_the_text_files_of_a_folder_are_its_text(save):
    save("own/NOTES.md", "notes\n" * 40)
    folder = save("own/corpus.txt", "".join(LINES)).parent
    corpus = rows(load_corpus(str(folder)))
    assert [row for split in SPLITS for row in corpus[split]] == LINES


@pytest.mark.parametrize("suffix", [".txt.gz", ".md", ".csv.txt"])
def test_one_file_is_split_without_overlap_and_only_train_is_cut_to_a_number_of_words(save, suffix):
    path = str(save(f"own{suffix}", "".join(LINES)))
    corpus = rows(load_corpus(path))
    assert [row for split in SPLITS for row in corpus[split]] == LINES
    assert [len(corpus[split]) for split in SPLITS] == [36, 2, 2]
    for count, kept in ((1, ["line\n"]), (4, LINES[:2]), (5, [*LINES[:2], "line\n"]), (999, LINES[:36])):
        assert rows(load_corpus(path, max_train_words=count)) == {**corpus, "train": kept}


@pytest.mark.parametrize(
    ("names", "suffix", "mark"),
    [(("train", "valid", "test"), ".txt", "\ufeff"), (("x.train", "x.dev", "x.test"), ".txt.gz", "")],
)
def test_a_folder_gives_each_split_from_the_file_of_that_name(save, names, suffix, mark):
    for name in names:
        folder = save(f"own/{name}{suffix}", f"{mark}  first of {name} \r\n\n\u2028 last").parent
    save("own/README.md", "train test")
    assert rows(load_corpus(str(folder))) == {
        split: [f"  first of {name} \n", "\n", "\u2028 last\n"] for split, name in zip(SPLITS, names, strict=True)
    }


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
    Dataset.from_dict({"text": ["a", None, "b\n", "c"]}).save_to_disk(tmp_path / "one")
    assert rows(load_corpus(tmp_path / "one")) == {"train": ["a\n", "\n"], "validation": ["b\n"], "test": ["c\n"]}
    carved = [split for split in SPLITS if split not in given_splits]
    assert [row for split in ("train", *carved) for row in corpus[split]] == [f"train {n}\n" for n in range(40)]
    assert all(len(corpus[split]) == (2 if split in carved else 40) for split in SPLITS[1:])


@pytest.fixture
def data(save, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TARGETS_DATA", str(tmp_path))
    return save


@pytest.mark.parametrize(("name", "begin"), [("ptb", "ptb."), ("wikitext-2", ""), ("us-code-legal", "paragraphs.")])
def test_a_benchmark_comes_from_the_folder_that_the_environment_names_line_by_stripped_line(data, name, begin):
    for split in ("train", "valid", "test"):
        data(f"{name}/{begin}{split}.txt.gz", f" the {split} \n \n end ")
    data(f"{name}/raw/notes.txt", "not this")
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
    for name in ("ptb", "lm1b-sample", "opus-multidomain:law", "text8"):
        with pytest.raises(ValueError, match=r"HF_TARGETS_DATA=None.*put it there"):
            load_corpus(name)


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("lm1b-sample", "lm1b-sample/1b_benchmark", "tokens"),
        ("opus-multidomain:law", "opus-multidomain-de-en/law", "en"),
    ],
)
def test_a_corpus_without_a_train_file_trains_on_its_dev_file_and_halves_its_test_file(data, name, begin, end):
    data(f"{begin}.dev.{end}", " a b .\nc d .")
    with pytest.raises(ValueError, match=r"needs .*test"):
        load_corpus(name)
    data(f"{begin}.test.{end}.gz", "1 .\n2 . \n3 .\n4 .\n5 .\n")
    halved = {"train": ["a b .\n", "c d .\n"], "validation": ["1 .\n", "2 .\n"], "test": ["3 .\n", "4 .\n", "5 .\n"]}
    assert rows(load_corpus(name)) == halved
    assert rows(load_corpus(name, max_train_words=2))["train"] == ["a b\n"]
    data(f"{begin}.train.{end}", "whole\n")
    assert len(rows(load_corpus(name))["train"]) == (2 if name == "lm1b-sample" else 1)


def test_no_more_of_a_compressed_text_is_read_than_is_asked_for(tmp_path):
    for split in ("valid", "test"):
        (tmp_path / f"{split}.txt").write_text("x y\n" * 3)
    whole = gzip.compress(b"some words\n" * 3_000_000, compresslevel=1)
    (tmp_path / "train.txt.gz").write_bytes(whole[: len(whole) // 2])  # its end cannot be read
    assert sum(len(row.split()) for row in load_corpus(tmp_path, max_train_words=5)["train"]["text"]) == 5
    with pytest.raises(ValueError, match="can be read"):
        load_corpus(tmp_path)


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz", "text.txt.xz"])
def test_a_byte_order_mark_is_no_text(name, tmp_path):
    content = ("\ufeff" + "".join(LINES)).encode()
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(Path(name).suffix, bytes)
    (tmp_path / name).write_bytes(pack(content))
    assert load_corpus(tmp_path / name)["train"]["text"][0] == LINES[0]


def test_text8_is_split_by_characters_between_words(data):
    words = [f"{number:04}" for number in range(1000)]  # 5 characters each, with a space
    data("text8/text8", " " + " ".join(words))
    found = {split: text(load_corpus("text8"), split).split() for split in SPLITS}
    assert [len(found[split]) for split in SPLITS] == [900, 50, 50]
    assert [word for split in SPLITS for word in found[split]] == words


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_json_lines_are_a_data_set_and_load_without_a_word(save, capfd, kind):
    path = save("own/train.jsonl", "".join(f'{{"body": "line {n}", "id": {n}}}\n' for n in range(40)))
    hidden = datasets.are_progress_bars_disabled()
    corpus = rows(load_corpus(str(path.parent if kind == "folder" else path), text_column="body"))
    assert [row for split in SPLITS for row in corpus[split]] == LINES
    assert capfd.readouterr() == ("", "")
    assert datasets.are_progress_bars_disabled() is hidden


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"own.txt": " \n" * 40}, "words"),
        ({"own/train.txt": "a", "own/valid.txt": "\n", "own/test.txt": "a"}, "validation"),
        ({"own/train.csv": "a,b\n1,2\n"}, "column"),
    ],
)
def test_text_that_gives_no_three_splits_is_refused(save, tmp_path, files, says):
    for name, content in files.items():
        save(name, content)
    with pytest.raises(ValueError, match=says):
        load_corpus(str(tmp_path / next(iter(files)).split("/")[0]))


def test_a_file_cut_short_is_refused_by_name(save):
    path = save("own.txt.gz", "".join(LINES))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"own\.txt\.gz"):
        load_corpus(str(path))


def test_options_that_do_not_apply_and_names_found_nowhere_are_refused(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda *_: exec("raise ConnectionError('no route')"))
    with pytest.raises(ValueError, match=r"'some/name' is neither .* Hub .*no route.*config_name='x'"):
        load_corpus("some/name", config_name="x")
    with pytest.raises(ValueError, match="leave them out"):
        load_corpus("documentation:topics", text_column="body")
    with pytest.raises(ValueError, match="at least 1, got 0"):
        load_corpus(max_train_words=0)
