import re

import pytest

from hf_targets.training.outputs import (
    RUN_OUTPUT,
    check_run_folder,
    check_run_names,
    find_output,
    remove_output,
    run_patterns,
    write_json,
)


def make(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def names_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "x/y", "/x", "x/", "./x", "x\\y", "..\\x", "c:x", " x", "x\n", "x\0", "x" * 201, None, 3],
)
def test_a_row_name_is_one_plain_path_component(name):
    with pytest.raises(ValueError, match=r"must be one printable path component .* got " + re.escape(repr(name))):
        check_run_names(["plain", name])


@pytest.mark.parametrize("names", [["a", "a"], ["Curve", "curve"], ["\u00e9", "e\u0301"], ["straße", "STRASSE"]])
def test_row_names_that_are_one_folder_on_some_disk_are_refused(names):
    with pytest.raises(ValueError, match="must have names that differ"):
        check_run_names(names)


@pytest.mark.parametrize("name", ["results.json", "RESULTS.json", "checkpoint-12"])
def test_a_row_may_not_have_the_name_of_another_output(name):
    check_run_names([name])
    with pytest.raises(ValueError, match="must not have the name of another output"):
        check_run_names([name], reserved=["results.json", "checkpoint-*"])


def test_no_rows_are_refused_with_the_setting_that_names_them():
    with pytest.raises(ValueError, match="kinds must name at least one model, got none"):
        check_run_names([], setting="kinds")


def test_names_that_are_folders_everywhere_are_taken():
    check_run_names(
        ["plain", "curve-2.0", "wdr_4", "hidden 2", "λ=.4", "*", "[ab]", "a.json"], reserved=["results.json"]
    )


def test_only_what_a_training_writes_is_removed_from_a_row(tmp_path):
    own = [
        "one/checkpoint-3/model.safetensors",
        "one/config.json",
        "one/training.json",
        "one/model.safetensors",
        "one/import_hf_targets.py",
    ]
    kept = ["one/notes.txt", "one/data/config.json", "two/config.json", "checkpoint-3/a", "one.txt"]
    make(tmp_path, *own, *kept, "three/config.json")
    remove_output(tmp_path, run_patterns("one"))
    assert names_in(tmp_path) == sorted([*kept, "three/config.json"])
    remove_output(tmp_path, run_patterns("three"))
    assert names_in(tmp_path) == sorted(kept)
    assert not (tmp_path / "three").exists()


def test_a_name_with_signs_of_a_pattern_is_only_itself(tmp_path):
    make(tmp_path, "*/config.json", "a/config.json", "[ab]/config.json")
    remove_output(tmp_path, [*run_patterns("*"), *run_patterns("[ab]")])
    assert names_in(tmp_path) == ["a/config.json"]


def test_nothing_outside_is_found_or_removed(tmp_path):
    outside, folder = tmp_path / "outside", tmp_path / "out"
    make(outside, "config.json", "checkpoint-1/state")
    make(folder, "config.json", "row/config.json")
    (folder / "linked").symlink_to(outside)
    (folder / "checkpoint-1").symlink_to(outside / "checkpoint-1")
    patterns = ["../outside/*", "row/../..", "row/..", ".", "..", str(outside), *run_patterns("linked"), *RUN_OUTPUT]
    assert find_output(folder, patterns) == [folder / "checkpoint-1", folder / "config.json"]
    remove_output(folder, patterns)
    assert names_in(outside) == ["checkpoint-1/state", "config.json"]
    assert names_in(folder) == ["row/config.json"]
    assert (folder / "linked").is_symlink()
    assert not (folder / "checkpoint-1").is_symlink()  # that link is gone, its target is not


def test_an_output_folder_that_is_itself_a_link_is_emptied(tmp_path):
    make(tmp_path / "disk", "config.json", "notes.txt")
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    remove_output(tmp_path / "out", RUN_OUTPUT)
    assert names_in(tmp_path / "disk") == ["notes.txt"]
    assert (tmp_path / "out").is_symlink()


def test_a_row_folder_is_a_folder_of_its_own(tmp_path):
    make(tmp_path, "file", "row/config.json")
    (tmp_path / "link").symlink_to(tmp_path / "row")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    check_run_folder(tmp_path / "row")
    check_run_folder(tmp_path / "new")
    for name, kind in (("file", "a file"), ("link", "a link to .*row"), ("lost", "a link to .*nowhere")):
        with pytest.raises(ValueError, match=f"must be a folder of its own, .* and is {kind}"):
            check_run_folder(tmp_path / name)


def test_a_file_that_cannot_be_written_leaves_the_older_one(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    circle: list = []
    circle.append(circle)
    with pytest.raises(ValueError, match="Circular"):
        write_json(tmp_path / "a.json", circle)
    assert (tmp_path / "a.json").read_text() == '{\n "x": 1\n}\n'
    assert names_in(tmp_path) == ["a.json"]
