"""Heads of multi-token prediction: trained, drafting, run by Transformers alone; one in the layout of speculators."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, Gemma3TextConfig, Olmo2Config
from transformers.modeling_layers import MtpModel

from hf_targets import MultiTokenForCausalLM
from hf_targets.multitoken.drafting.loop import DraftingLoop
from hf_targets.multitoken.mtp_files import save_for_speculators
from tests.tiny_backbones import CONFIGS, SMALL, left_padded, make_backbone, token_ids

MORE = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 64, "bos_token_id": 0, "eos_token_id": 0}
MORE["pad_token_id"] = 0
OTHERS = {
    "gemma3": lambda: Gemma3TextConfig(
        **MORE, head_dim=8, sliding_window=4, layer_types=["full_attention", "sliding_attention"]
    ),
    "olmo2": lambda: Olmo2Config(**MORE),
}
FAMILIES = ("llama", "qwen3", "phi", *OTHERS)
GREEDY = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "return_dict_in_generate": True}


@pytest.fixture(autouse=True)
def families(monkeypatch):
    for name, config in OTHERS.items():
        monkeypatch.setitem(CONFIGS, name, config)


def make(family, **config):
    settings = {"head": "mtp", "target": "embedding", "ngram_size": 3, "loss_weight": 1.0, **config}
    return MultiTokenForCausalLM.from_base(make_backbone(family), **settings)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_trained_and_drafts_in_batches_what_it_drafts_for_each_row(family):
    model = make(family, target="difference" if family in ("qwen3", "olmo2") else "embedding").train()
    prompts, mask = left_padded(3)
    texts = torch.cat([prompts, token_ids(3, 8, seed=1)], dim=1)
    given = {"attention_mask": torch.cat([mask, torch.ones_like(texts[:, 7:])], dim=1)}
    given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(15):
        loss = model(texts, **given, labels=texts).loss
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad.any() for parameter in model.heads.parameters())
        optimizer.step()
    model.double().eval()
    plain, drafted = (model.generate(prompts, attention_mask=mask, draft_tokens=k, **GREEDY) for k in (0, 2))
    assert torch.equal(drafted.sequences, plain.sequences)
    alone = [
        model.generate(row[keep.bool()][None], draft_tokens=2, **GREEDY)
        for row, keep in zip(prompts, mask, strict=True)
    ]
    assert drafted.num_accepted_tokens == sum(one.num_accepted_tokens for one in alone) > 3


@pytest.mark.skipif(not hasattr(MtpModel, "forward_layer"), reason="Transformers before 5.20 runs other layers")
@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_alone_loads_it_drafts_the_same_and_writes_the_same(family, tmp_path, monkeypatch):
    model, ids, drafts, theirs = make(family).eval(), token_ids(1, 9), [], []
    model.save_pretrained(tmp_path, native_mtp=True)
    native = AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True).eval()
    make_draft, forward = DraftingLoop._make_draft, MtpModel.forward

    def recorded(loop):
        drafts.append(make_draft(loop))
        return drafts[-1]

    def recorded_there(mtp, *args, **kwargs):
        theirs.append(forward(mtp, *args, **kwargs))
        return theirs[-1]

    monkeypatch.setattr(DraftingLoop, "_make_draft", recorded)
    monkeypatch.setattr(MtpModel, "forward", recorded_there)
    expected = native.generate(ids, **GREEDY).sequences
    assert torch.equal(native.generate(ids, use_mtp=True, **GREEDY).sequences, expected)
    assert torch.equal(model.generate(ids, draft_tokens=2, **GREEDY).sequences, expected)
    whole = [draft.tokens for draft in drafts if draft.tokens.shape[1] == 2]
    assert len(whole) > 3 and all(torch.equal(own, there[0]) for own, there in zip(whole, theirs, strict=False))
    mtp, state, steps = MtpModel.from_pretrained(native), native.model(ids)[0], torch.arange(9)[None]
    losses = model(ids, labels=ids).loss_parts
    for n in (1, 2):
        state = mtp.forward_layer(n - 1, state[:, :-1], steps[:, n:], None, input_ids=ids[:, n:])
        logits = mtp.shared_head(state[0, :-1] * model.config.output_scale)
        torch.testing.assert_close(losses[f"head_{n}"] * 8 / (8 - n), cross_entropy(logits, ids[0, n + 1 :]))


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_a_backbone_whose_layers_do_not_fit_is_refused(family):
    with pytest.raises(ValueError, match="conditional"):
        make(family)


def test_what_transformers_cannot_run_is_not_saved_for_it(tmp_path):
    with pytest.raises(ValueError, match="difference"):
        make("llama", target="difference").save_pretrained(tmp_path, native_mtp=True)
    adapted = get_peft_model(make("llama").backbone, LoraConfig(target_modules=["lm_head"]))
    with pytest.raises(ValueError, match="adapter"):
        MultiTokenForCausalLM.from_base(adapted.get_base_model(), head="mtp", target="embedding")
    assert not list(tmp_path.iterdir())


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
    [
        ({"ngram_size": 3}, {}, "one head"),
        ({"head": "mlp"}, {}, "mlp"),
        ({}, {"speculative_tokens": 0}, "1 token"),
        ({}, {"engine_version": "0.5.2"}, "from 0.6 on"),
    ],
)
def test_what_speculators_does_not_hold_is_refused(config, how, word, base, tmp_path):
    with pytest.raises(ValueError, match=word):
        save_for_speculators(put(base, **config), tmp_path / "out", **how)
    model = put(base)
    torch.nn.init.zeros_(model.backbone.lm_head.weight)
    with pytest.raises(ValueError, match="differs"):
        save_for_speculators(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("draft_tokens", [2, "auto"])
def test_a_static_cache_drafts_the_same_text(draft_tokens):
    model, (ids, mask) = make("llama").double().eval(), left_padded(1)
    told = {**GREEDY, "attention_mask": mask, "max_new_tokens": 30}
    drafted = model.generate(ids, draft_tokens=draft_tokens, cache_implementation="static", **told)
    assert torch.equal(drafted.sequences, model.generate(ids, **told).sequences)
