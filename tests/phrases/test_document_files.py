import re

import pytest

from hf_targets.phrases.document_files import read_documents, read_phrase_list


def test_documents_are_named_by_as_few_folders_as_tell_them_apart(tmp_path):
    names = ("a/x.txt", "b/x.txt", "a/y.txt")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"in {name}", encoding="utf-8")
    paths = [str(tmp_path / name) for name in names]
    assert read_documents(paths[1:]) == {"x.txt": "in b/x.txt", "y.txt": "in a/y.txt"}
    assert read_documents(paths) == {name: f"in {name}" for name in names}
    assert read_documents([]) == {}


def test_a_mark_of_byte_order_is_no_part_of_a_text(tmp_path):
    (tmp_path / "x.txt").write_text("text", encoding="utf-8-sig")
    assert read_documents([str(tmp_path / "x.txt")]) == {"x.txt": "text"}
    assert read_phrase_list(str(tmp_path / "x.txt")) == ["text"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"caf\xe9 au lait", "must be UTF-8, and .*x.txt is not .*; convert it"),
        (b" \n\n", "and .*x.txt has none"),
        (None, "cannot read .*x.txt: No such file"),
    ],
)
@pytest.mark.parametrize("read", [lambda path: read_documents([path]), read_phrase_list], ids=["documents", "phrases"])
def test_a_file_that_gives_no_text_is_told(content, told, read, tmp_path):
    if content is not None:
        (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(ValueError, match=told):
        read(str(tmp_path / "x.txt"))


def test_a_folder_is_no_document(tmp_path):
    with pytest.raises(ValueError, match="Is a directory"):
        read_documents([str(tmp_path)])


def test_a_document_is_given_once(tmp_path):
    (tmp_path / "x.txt").write_text("text", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape("must be given once, got x.txt twice")):
        read_documents([str(tmp_path / "x.txt"), str(tmp_path / ".." / tmp_path.name / "x.txt")])
