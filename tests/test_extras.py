import sys

import pytest

from hf_targets.extras import check_engine, require


def test_an_installed_module_is_returned():
    assert require("json", extra="figures").dumps([1]) == "[1]"


def test_a_missing_module_names_the_extra():
    with pytest.raises(ImportError, match=r"not_there .* pip install '\.\[figures\]'"):
        require("not_there", extra="figures")


def test_a_broken_module_raises_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("import something_it_lacks")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="something_it_lacks"):
        require("broken_module", extra="figures")
    assert "broken_module" not in sys.modules


def test_the_installed_release_of_an_engine_counts_where_none_is_given():
    check_engine("no-such-engine", given=None, newest="0.1")
    with pytest.raises(ValueError, match="pytest reads this format up to"):
        check_engine("pytest", "no-such-engine", given=None, newest="0.9")
    check_engine("pytest", given="0.9.dev1", newest="0.9")
