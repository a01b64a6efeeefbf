import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # the suite runs in several processes
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import settings

from tests.programs import ROOT

settings.register_profile("laws", max_examples=20, derandomize=True, deadline=None)
settings.load_profile("laws")
gc.disable()  # of all that the tests import, nothing is garbage
if "HF_TARGETS_MISALIGN" in os.environ:
    from tests.memory import misalign_files

    misalign_files(int(os.environ["HF_TARGETS_MISALIGN"]))


def starts_programs(item):
    """Return whether a test may start a program: there is the Hub, or a module that runs programs."""
    module = vars(getattr(item, "module", pytest))
    return "hub" in item.fixturenames or not {"run_program", "run_processes", "run_code"}.isdisjoint(module)


def pytest_collection_modifyitems(items):
    """Let programs come first, so that one of the workers alone starts their servers, and they leave no long end."""
    items.sort(key=lambda item: not starts_programs(item))
    for item in items:
        for name in (name for mark in item.iter_markers("real") for name in mark.args):
            if not (ROOT / "models" / name).is_dir():
                item.add_marker(pytest.mark.skip(f"needs models/{name}, which `make models` fetches"))


def pytest_collection_finish():
    gc.freeze()  # each training collects garbage
    gc.enable()


@pytest.fixture(autouse=True)
def _seed():
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """Return a Hub, whose clients have not imported `hf_targets`."""
    from tests.hub_server import HubServer

    with HubServer(tmp_path_factory.mktemp("hub") / "home") as server:
        yield server


@pytest.fixture
def clear_choices(monkeypatch):
    """Fail the test if it depends on a choice that rounding may change."""
    from tests.choices import require_clear_choices

    require_clear_choices(monkeypatch)
