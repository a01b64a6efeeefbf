"""The recipe that builds a datastore of phrases, without Ray; tests/phrases has its workers."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from hf_targets import PhraseDatastore
from tests.phrases.datastores import documents, save_model
from tests.recipes.running import run_recipe

SMALL = ["--min_count", 3, "--rows_per_shard", 50]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


def run(model, out, dataset, *given):
    return run_recipe(
        "build_phrase_datastore", "--model", model, "--dataset", dataset, "--output_dir", out, *SMALL, *given
    )


def test_parquet_and_json_lines_give_the_same_datastore(model, tmp_path):
    rows, files = documents()["text"][:], [tmp_path / "rows.parquet", tmp_path / "rows.jsonl"]
    pq.write_table(pa.table({"text": rows, "name": [f"row {at}" for at in range(len(rows))]}), files[0])
    files[1].write_text("".join(f"{json.dumps({'text': row, 'name': f'row {at}'})}\n" for at, row in enumerate(rows)))
    found = []
    for file in files:
        out = tmp_path / file.suffix[1:]
        printed = run(model, out, file, "--id_column", "name", "--is_one_text", "false")
        assert "| encoding phrases |" in printed
        store = PhraseDatastore.from_folder(out / "phrases", AutoTokenizer.from_pretrained(model))
        found.append((store.fingerprint, store.counts.tolist()))
        assert json.loads((out / "results.json").read_text())["phrases"] == len(store.vocabulary)
    assert found[0] == found[1]


def test_a_file_that_ends_early_is_an_error_that_names_it(model, tmp_path):
    whole = "".join(f"{json.dumps({'text': row})}\n" for row in documents()["text"])
    files = {"cut.jsonl": whole[:-9].encode(), "cut.jsonl.gz": gzip.compress(whole.encode())[:-40]}
    pq.write_table(pa.table({"text": documents()["text"][:]}), tmp_path / "whole")
    files["cut.parquet"] = (tmp_path / "whole").read_bytes()[:-40]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=f"{name}.*can be read"):
            run(model, tmp_path / "out", tmp_path / name)
    assert not (tmp_path / "out").exists()
