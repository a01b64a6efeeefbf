"""Whether the classes of speculators give a saved head the logits that it has here: run it twice, by hand.

python recipes/lab/engines/load_speculators.py work           # where hf_targets is installed: writes the files
speculators/bin/python .../load_speculators.py work           # where speculators 0.9 is: loads and compares them
Printed 2026-11-27 with speculators 0.9.0, Transformers 5.19: "largest difference 1.49e-08 of logits up to 0.117".
"""

# pyright: reportArgumentType=false, reportMissingImports=false
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

folder, ids = Path(sys.argv[1]), torch.arange(20)[None] % 17
if find_spec("speculators") is None:
    from hf_targets import MultiTokenForCausalLM, save_for_speculators
    from hf_targets.multitoken.mtp import Reading

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = Qwen3Config(**sizes, head_dim=8, num_attention_heads=4, num_key_value_heads=2)
    Qwen3ForCausalLM(config).save_pretrained(folder / "base")
    model = MultiTokenForCausalLM.from_base(str(folder / "base"), head="mtp", target="embedding", ngram_size=2).eval()
    for parameter in model.heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    hidden = model.backbone.model(ids).last_hidden_state
    read = model.heads(hidden, ids, reading=Reading.of(model.backbone, ids, torch.arange(20)[None]))[0]
    logits = model.backbone.lm_head(read).detach()
    save_file({"logits": logits, "hidden": hidden.detach()}, folder / "expected.safetensors")
    save_for_speculators(model, folder / "speculator")
else:
    from speculators.models.mtp import MTPDraftModel

    expected = load_file(folder / "expected.safetensors")
    with torch.no_grad():
        logits = MTPDraftModel.from_pretrained(str(folder / "speculator")).eval()(ids, expected["hidden"])[0][0]
    ours = expected["logits"][:, : logits.shape[1]]
    print(f"largest difference {(ours - logits).abs().max():.3g} of logits up to {ours.abs().max():.3g}")
