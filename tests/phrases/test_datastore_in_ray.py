"""Shards done by Ray: the same results as in one process, workers that are killed included."""

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hf_targets import KnnDatastore, distill
from hf_targets.data.shards import run_shards
from tests.gaussian_diffusion.test_distillation import make_teacher
from tests.phrases.datastores import assert_equal, build, load_model, save_model
from tests.programs import ROOT
from tests.tiny_backbones import make_backbone, token_ids

pytestmark = pytest.mark.ray
SIZES = dict.fromkeys(range(5), 2)
HOW = {"description": "trying", "unit": "row"}


@pytest.fixture(scope="module", autouse=True)
def _ray():
    """Start Ray once, with workers that find the tests and are not slowed down."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        patch.delenv("RAY_ADDRESS", raising=False)
        yield
    ray.shutdown()


def kill_once(flag):
    """Kill this process with -9 where none was killed before."""
    try:
        Path(flag).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def square(flag, shard):
    if shard == 2:
        kill_once(flag)
    if shard > 100:
        raise KeyError(f"shard {shard} is too large")
    return shard**2


def test_each_shard_is_done_by_workers_as_by_one_process_and_errors_come_back(tmp_path):
    found = run_shards(partial(square, tmp_path / "killed"), SIZES, workers=2, **HOW)
    assert sorted(found) == [0, 1, 4, 9, 16]
    assert (tmp_path / "killed").exists()
    with pytest.raises(KeyError, match="shard 101 is too large"):
        list(run_shards(partial(square, tmp_path / "killed"), {0: 1, 101: 1}, workers=1, **HOW))


def test_a_datastore_built_by_workers_of_which_some_are_killed_equals_that_of_one_process(tmp_path):
    model = save_model(tmp_path / "model")
    alone = build(tmp_path / "alone", model, ["words"])
    loader = partial(load_in_worker, tmp_path / "killed", os.getpid())
    assert_equal(build(tmp_path / "two", model, ["words"], make_model=loader, workers=2), alone)
    assert (tmp_path / "killed").exists()


def load_in_worker(flag, driver, name):
    if os.getpid() != driver:
        kill_once(flag)
    return load_model(name)


def test_the_datastore_of_knn_lm_and_a_teachers_translations_are_the_same_with_workers(tmp_path):
    model, blocks = make_backbone("gpt2"), [{"input_ids": row} for row in token_ids(6, 12).tolist()]
    one, two = (
        KnnDatastore.build(model, blocks, tmp_path / str(workers), shard_size=20, workers=workers)
        for workers in (None, 2)
    )
    assert np.array_equal(one.keys, two.keys) and np.array_equal(one.words, two.words)
    settings = {"part_size": 4, "num_beams": 1, "max_new_tokens": 4}
    alone, shared = (
        distill(*make_teacher(), tmp_path / f"parts{workers}", workers=workers, **settings) for workers in (None, 2)
    )
    assert shared["train"].to_dict() == alone["train"].to_dict()
