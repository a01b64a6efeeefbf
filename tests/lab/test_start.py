"""What a script's start leaves out of its output: only what nobody can act on."""

from tests.programs import run_program

CODE = """
import logging
from pathlib import Path
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.trainer_utils import sort_checkpoints
from transformers.utils.logging import tqdm
from lab.start import leave_noise_out
START
config = GPT2Config(vocab_size=8, n_layer=1, n_embd=8, n_head=1, bos_token_id=0, eos_token_id=0)
model = GPT2LMHeadModel(config)
model(**model.dummy_inputs, labels=model.dummy_inputs["input_ids"])
model.save_pretrained("model")
GPT2LMHeadModel.from_pretrained("model")
for step in (1, 2):
    Path(f"checkpoint-{step}").mkdir(exist_ok=True)
sort_checkpoints(".", use_mtime=True)
"""


def test_short_bars_and_what_a_user_cannot_change_are_not_shown(tmp_path):
    told = [run_program(CODE.replace("START", start), folder=tmp_path).stderr for start in ("", "leave_noise_out()")]
    for noise in ("loss_type=None", "Loading weights", "mtime"):
        assert noise in told[0], "else there is nothing to leave out"
    assert told[1] == ""


def test_long_work_and_other_warnings_are_shown(tmp_path):
    after = """
leave_noise_out()
logging.getLogger("transformers.modeling_utils").warning("a warning of another kind")
with tqdm(total=2, delay=0.0, mininterval=0.0) as bar:
    bar.update(1)
"""
    told = run_program(CODE.replace("START", after), folder=tmp_path).stderr
    assert "a warning of another kind" in told and "1/2" in told
