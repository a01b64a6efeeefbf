"""What a script's start leaves out of its output: only what nobody can act on."""

import os
import subprocess
import sys

from tests.programs import ROOT

CODE = """
import sys
sys.path.insert(0, "{recipes}")
from lab.start import leave_noise_out
{start}
import logging, warnings
from pathlib import Path
from datasets import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
from transformers.trainer_utils import sort_checkpoints
from transformers.utils.logging import tqdm
config = GPT2Config(vocab_size=8, n_layer=1, n_embd=8, n_head=1, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
model(**model.dummy_inputs, labels=model.dummy_inputs["input_ids"])
model.save_pretrained("model")
GPT2LMHeadModel.from_pretrained("model")
for step in (1, 2):
    Path(f"checkpoint-{{step}}").mkdir(exist_ok=True)
sort_checkpoints(".", use_mtime=True)
TrainingArguments(gradient_checkpointing=True)
Dataset.from_dict({{"a": [1]}}).map(lambda row: {{"b": 2}})
{more}
"""


def told(folder, start="", more=""):
    """Return what a program writes on stderr after such a start."""
    code = CODE.format(recipes=ROOT / "recipes", start=start, more=more)
    own = {name: value for name, value in os.environ.items() if name != "TQDM_DELAY"}  # an earlier test may set it
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=own, check=True)
    return done.stderr


def test_short_bars_and_what_a_user_cannot_change_are_not_shown_and_all_else_is(tmp_path):
    before = told(tmp_path)
    for noise in ("loss_type=None", "Loading weights", "mtime", "gradient_checkpointing", "Map:"):
        assert noise in before, "else there is nothing to leave out"
    more = """
logging.getLogger("transformers.modeling_utils").warning("a warning of another kind")
warnings.warn("`something` is deprecated", FutureWarning)
with tqdm(total=2, delay=0.0, mininterval=0.0) as bar:
    bar.update(1)
"""
    assert told(tmp_path, "leave_noise_out()") == ""
    after = told(tmp_path, "leave_noise_out()", more)
    assert all(text in after for text in ("a warning of another kind", "`something` is deprecated", "1/2"))
