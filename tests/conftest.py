import gc
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from tests.choices import require_clear_choices
from tests.hub_server import HubServer
from tests.memory import misalign_files
from tests.programs import ROOT

gc.disable()  # of all that the tests import, nothing is garbage
torch.set_num_threads(1)  # the suite runs in several processes
if "HF_TARGETS_MISALIGN" in os.environ:
    misalign_files(int(os.environ["HF_TARGETS_MISALIGN"]))


def pytest_collection_modifyitems(items):
    if not (ROOT / "models").is_dir():
        for item in items:
            if item.get_closest_marker("real"):
                item.add_marker(pytest.mark.skip("needs `make models`"))


def pytest_collection_finish():
    gc.freeze()  # each training collects garbage
    gc.enable()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """Return a Hub, whose clients have not imported `hf_targets`."""
    with HubServer(tmp_path_factory.mktemp("hub") / "home") as server:
        yield server


@pytest.fixture
def clear_choices(monkeypatch):
    """Fail the test if it depends on a choice that rounding may change."""
    require_clear_choices(monkeypatch)
