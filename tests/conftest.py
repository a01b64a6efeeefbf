import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)  # the suite runs in several processes


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
