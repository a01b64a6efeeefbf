"""A process that is killed while it saves leaves what was saved before, or what it saved, and nothing for ever."""

import os
from itertools import count

import pytest
import torch

from hf_targets.data.atomic_write import written_together
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.vector_index import VectorIndex
from tests.small_tokenizers import BPE


def make_index(size):
    pytest.importorskip("faiss").omp_set_num_threads(1)
    return VectorIndex.build(torch.eye(size))


def make_vocabulary(size):
    return PhraseVocabulary.from_token_ids([[5, 6 + number] for number in range(size)], BPE)


KINDS = {
    "index": (make_index, VectorIndex.load, ["vector_index.faiss", "vector_index.json"]),
    "vocabulary": (make_vocabulary, lambda folder: PhraseVocabulary.load(folder, BPE), ["phrase_vocabulary.*"]),
}


def saved_until_killed(value, folder, step):
    """Save in another process that ends before its file operation `step`; return whether it was killed."""
    child = os.fork()
    if child == 0:
        steps = count()

        def dying(call):
            return lambda *given, **named: os._exit(9) if next(steps) == step else call(*given, **named)

        for name in ("replace", "unlink", "rmdir"):
            setattr(os, name, dying(getattr(os, name)))
        value.save(folder)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("kind", KINDS)
def test_a_save_killed_before_any_of_its_renames_and_removals_leaves_the_old_or_the_new(kind, tmp_path):
    make, load, names = KINDS[kind]
    old, new = make(3), make(4)
    seen = []
    for step in count():
        folder = tmp_path / str(step)
        old.save(folder)
        was_killed = saved_until_killed(new, folder, step)
        seen.append(len(load(folder)))
        for left in (*folder.glob(".unfinished-*/*"), *folder.glob(".unfinished-*")):
            os.utime(left, (0, 0))
        make(5).save(folder)
        assert len(load(folder)) == 5
        assert all(len(list(folder.glob(name))) == 1 for name in names) and len(list(folder.iterdir())) == len(names)
        if not was_killed:
            break
    assert step >= 2 and seen == sorted(seen) and set(seen) == {3, 4}


def test_what_another_process_still_writes_to_is_left_alone(tmp_path):
    with written_together(tmp_path, "long") as unfinished:
        (unfinished / "long").write_text("begun")
        os.utime(unfinished, (0, 0))
        with written_together(tmp_path, "short") as other:
            (other / "short").write_text("whole")
    assert {path.name for path in tmp_path.iterdir()} == {"long", "short"}
