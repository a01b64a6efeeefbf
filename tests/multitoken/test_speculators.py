"""A head of multi-token prediction in the layout of speculators; `recipes/lab/engines` loads it with that library."""

import json

import pytest
import torch
from safetensors.torch import load_file

from hf_targets import MultiTokenForCausalLM
from hf_targets.multitoken.mtp_files import save_for_speculators
from tests.tiny_backbones import make_backbone

PLACES = {"enorm": "token_layernorm", "hnorm": "hidden_layernorm", "eh_proj": "input_proj"}
PLACES |= {"post_norm": "final_layernorm", "mtp_block.self_attn.q_proj": "self_attn.q_proj"}


@pytest.fixture
def base(tmp_path):
    make_backbone("qwen3").save_pretrained(tmp_path / "base")
    return str(tmp_path / "base")


def put(base, **config):
    return MultiTokenForCausalLM.from_base(base, **{"head": "mtp", "target": "embedding", "ngram_size": 2, **config})


def test_a_head_lies_where_speculators_looks_for_it(base, tmp_path):
    model = put(base)
    save_for_speculators(model, tmp_path / "out", speculative_tokens=3)
    written, told = (
        load_file(tmp_path / "out" / "model.safetensors"),
        json.loads((tmp_path / "out/config.json").read_text()),
    )
    own = model.heads.layers[0].state_dict()
    assert len(written) == len(own)
    for name, place in PLACES.items():
        assert torch.equal(written[f"mtp_layers.0.{place}.weight"], own[f"{name}.weight"])
    assert told["speculators_config"]["verifier"] == {"name_or_path": base, "architectures": ["Qwen3ForCausalLM"]}
    assert told["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    assert told["transformer_layer_config"]["model_type"] == "qwen3"


@pytest.mark.parametrize(
    ("config", "how", "word"),
    [({"ngram_size": 3}, {}, "one head"), ({"head": "mlp"}, {}, "mlp"), ({}, {"speculative_tokens": 0}, "1 token")],
)
def test_what_speculators_does_not_hold_is_refused(config, how, word, base, tmp_path):
    with pytest.raises(ValueError, match=word):
        save_for_speculators(put(base, **config), tmp_path / "out", **how)
    model = put(base)
    torch.nn.init.zeros_(model.backbone.lm_head.weight)
    with pytest.raises(ValueError, match="differs"):
        save_for_speculators(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
