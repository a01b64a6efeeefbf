import json
import logging
import os
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from hf_targets import MultiTokenConfig, MultiTokenForCausalLM
from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.multitoken import medusa
from hf_targets.multitoken.heads import FutureHeads
from hf_targets.multitoken.medusa import load_medusa_heads, save_medusa_for_vllm
from tests.hub_server import HubServer, run_against
from tests.memory import realigned
from tests.tiny_models import VOCAB, make_backbone, make_model, token_ids

WIDTH = 32


def medusa_tensors(heads=3, *, own, bias=True, width=WIDTH, vocab=VOCAB):
    state = {}
    for h in range(heads):
        state[f"{h}.0.linear.weight"] = torch.randn(width, width)
        if bias:
            state[f"{h}.0.linear.bias"] = torch.randn(width)
        if own:
            state[f"{h}.1.weight"] = torch.randn(vocab, width)
    return state


def vllm_tensors(heads=3, *, matrix=None, bias=True):
    state = {} if matrix is None else {"lm_head.weight": matrix}
    for name, tensor in medusa_tensors(heads, own=matrix is None, bias=bias).items():
        head, layer, *_, kind = name.split(".")
        state[f"blocks.{head}.layers.0.{kind}" if layer == "0" else f"lm_heads.{head}.weight"] = tensor
    return state


def write(folder, state, file="medusa_lm_head.pt", **config):
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / file) if file.endswith(".pt") else save_file(state, folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def check_heads(model, state, base):
    """The heads are x + SiLU(W x + b), then their matrix or the base model's with its bias."""
    x = torch.randn(2, 4, WIDTH)
    for h in range(len(model.heads)):
        layer = {kind: state.get(f"{h}.0.linear.{kind}", torch.zeros(WIDTH)) for kind in ("weight", "bias")}
        said = x + F.silu(x @ layer["weight"].T + layer["bias"])
        matrix = state.get(f"{h}.1.weight", base.lm_head.weight)
        bias = 0 if f"{h}.1.weight" in state or base.lm_head.bias is None else base.lm_head.bias
        output = model.heads.output(h + 1, OutputMap.of(model.backbone))
        torch.testing.assert_close(output(model.heads[h](x)), said @ matrix.T + bias)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
@pytest.mark.parametrize("bias", [True, False])
def test_heads_of_medusa_are_read_bit_for_bit(own, file, bias, tmp_path):
    state, base = medusa_tensors(own=own, bias=bias), make_backbone("llama")
    model, report = load_medusa_heads(write(tmp_path / "medusa", state, file), base)
    config = model.config
    assert (config.head, config.target, config.ngram_size) == ("medusa", "embedding", 4)
    assert (config.head_bias, config.separate_output_heads) == (bias, own)
    assert (report.layout, report.num_heads) == ("own" if own else "shared", 3)
    assert not model.training
    ours = model.state_dict()
    assert [theirs for theirs, _ in report.matched] == list(state)
    assert {name for _, name in report.matched} == {name for name in ours if name.startswith("heads.")}
    for theirs, name in report.matched:
        assert torch.equal(ours[name], state[theirs]), name
    check_heads(model, state, base)


@pytest.mark.parametrize("own", [False, True])
def test_a_head_predicts_the_word_that_medusa_trains_it_on(own, tmp_path):
    state, base, ids = medusa_tensors(own=own), make_backbone("gpt2"), token_ids(2, 9)
    model, _ = load_medusa_heads(write(tmp_path / "medusa", state), base)
    hidden = base.base_model(ids)[0]
    parts = model(ids, labels=ids).loss_parts
    for h in range(3):
        said = hidden + F.silu(F.linear(hidden, state[f"{h}.0.linear.weight"], state[f"{h}.0.linear.bias"]))
        logits = said @ state.get(f"{h}.1.weight", base.lm_head.weight).T
        theirs = F.cross_entropy(logits[:, : -(2 + h)].flatten(0, 1), ids[:, 2 + h :].flatten(), reduction="sum")
        torch.testing.assert_close(parts[f"head_{h + 1}"] * 16, theirs)  # 2 x 8 next tokens


def test_the_published_heads_of_vicuna_7b_fit_their_base_model():
    # FasterDecoding/medusa-vicuna-7b-v1.3: its keys, its config.json, and the 1,478,537,775 bytes of its file
    published = {}
    for h in range(5):
        published |= {
            f"{h}.0.linear.weight": (4096, 4096),
            f"{h}.0.linear.bias": (4096,),
            f"{h}.1.weight": (32000, 4096),
        }
    config = {"base_model_name_or_path": "lmsys/vicuna-7b-v1.3", "medusa_num_heads": 2, "medusa_num_layers": 1}
    layout, num_heads, names = medusa._match(Path("medusa_lm_head.pt"), published.keys(), config)
    assert (layout, num_heads) == ("own", 5)
    fields = MultiTokenConfig(ngram_size=6, head="medusa", target="embedding", separate_output_heads=True)
    with torch.device("meta"):
        heads = FutureHeads(fields, width=4096, vocab_size=32000)
    shapes = {name: tuple(tensor.shape) for name, tensor in heads.state_dict().items()}
    assert {name: published[theirs] for name, theirs in names.items()} == shapes
    assert 0 < 1_478_537_775 - 2 * sum(map(prod, shapes.values())) < 5000  # half precision, and the file's own tokens


def test_heads_past_the_ninth_are_counted_and_not_sorted_as_words(tmp_path):
    state = {}
    for h in range(12):
        state |= {f"{h}.0.linear.weight": torch.full((WIDTH, WIDTH), float(h)), f"{h}.0.linear.bias": torch.ones(WIDTH)}
    folder = write(tmp_path / "medusa", state, "medusa_lm_head.safetensors")
    assert list(load_file(folder / "medusa_lm_head.safetensors"))[4].startswith("10.")  # the file's own order
    model, _ = load_medusa_heads(folder, make_backbone("gpt2"))
    save_medusa_for_vllm(model, tmp_path / "vllm")
    for one in (model, load_medusa_heads(tmp_path / "vllm", make_backbone("gpt2"))[0]):
        assert [head.linear.weight[0, 0].item() for head in one.heads] == list(range(12))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_written_for_vllm_and_read_again_nothing_has_changed(own, bias, tmp_path):
    base = make_backbone("llama")
    model, _ = load_medusa_heads(write(tmp_path / "medusa", medusa_tensors(own=own, bias=bias)), base)
    save_medusa_for_vllm(model, tmp_path / "vllm")
    assert sorted(path.name for path in (tmp_path / "vllm").iterdir()) == ["config.json", "model.safetensors"]
    again, report = load_medusa_heads(tmp_path / "vllm", make_backbone("llama"))
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (report.layout, report.num_heads) == ("vllm", 3)
    assert again.config.separate_output_heads == own
    if not own:
        assert report.matched[-1] == ("lm_head.weight", "backbone.lm_head.weight")
    ids = token_ids(2, 8)
    assert torch.equal(realigned(again)(ids, labels=ids).loss, realigned(model)(ids, labels=ids).loss)


@pytest.mark.parametrize("own", [False, True])
def test_what_is_written_has_vllms_names_and_configuration(own, tmp_path):
    base = make_backbone("llama")
    base.config._name_or_path = base.name_or_path = "me/base"
    fields = {"ngram_size": 3, "head": "medusa", "target": "embedding", "head_bias": own, "separate_output_heads": own}
    save_medusa_for_vllm(MultiTokenForCausalLM.from_base(base, **fields), tmp_path)
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    expected = {f"blocks.{h}.layers.0.weight": (32, 32) for h in range(2)}
    if own:
        expected |= {f"blocks.{h}.layers.0.bias": (32,) for h in range(2)}
    expected |= {f"lm_heads.{h}.weight": (50, 32) for h in range(2)} if own else {"lm_head.weight": (50, 32)}
    assert shapes == expected
    values = {"architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 2, "num_hidden_layers": 1}
    values |= {"hidden_size": 32, "vocab_size": 50, "truncated_vocab_size": 50, "base_model_name_or_path": "me/base"}
    values |= {"medusa_fc_bias": own, "original_lm_head": not own}
    assert json.loads((tmp_path / "config.json").read_text()) == values


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_heads.0.weight"])
def test_vllms_one_matrix_for_all_heads_is_read_under_either_name(name, tmp_path):
    state, base = vllm_tensors(matrix=torch.randn(VOCAB, WIDTH)), make_backbone("llama")
    state[name] = state.pop("lm_head.weight")
    config = {"num_heads": 3, "medusa_fc_bias": True, "original_lm_head": True}
    model, report = load_medusa_heads(write(tmp_path / "v", state, "model.safetensors", **config), base)
    assert (report.layout, model.config.separate_output_heads) == ("vllm", True)
    assert all(torch.equal(output.weight, state[name]) for output in model.heads.outputs)
    state[name] = base.lm_head.weight.detach().clone()
    model, report = load_medusa_heads(write(tmp_path / "v", state, "model.safetensors", **config), base)
    assert not model.config.separate_output_heads
    assert (name, "backbone.lm_head.weight") in report.matched


@pytest.mark.parametrize(("family", "changed", "own"), [("llama", 0, False), ("llama", 1, True), ("phi", 0, True)])
def test_matrices_that_copy_the_base_models_are_shared_unless_it_has_a_bias(family, changed, own, tmp_path):
    base, state = make_backbone(family), medusa_tensors(own=True)
    for h in range(3):
        state[f"{h}.1.weight"] = base.lm_head.weight.detach().clone()
    state["2.1.weight"][7, 5] += changed
    if base.lm_head.bias is not None:
        torch.nn.init.normal_(base.lm_head.bias)
    model, report = load_medusa_heads(write(tmp_path / "medusa", state), base)
    assert model.config.separate_output_heads == own
    assert ("1.1.weight", "heads.outputs.1.weight" if own else "backbone.lm_head.weight") in report.matched
    check_heads(model, state, base)


def test_heads_take_the_type_of_the_base_models_matrix(tmp_path):
    base, state = make_backbone("llama"), {name: one.half() for name, one in medusa_tensors(own=True).items()}
    state |= {f"{h}.1.weight": base.lm_head.weight.detach().half() for h in range(3)}
    base = base.half().bfloat16()
    model, _ = load_medusa_heads(write(tmp_path / "medusa", state), base)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert not model.config.separate_output_heads
    assert torch.equal(model.heads[0].linear.weight, state["0.0.linear.weight"].bfloat16())


@pytest.mark.parametrize("given", [False, True])
def test_the_base_model_is_the_one_given_or_the_one_that_config_json_names(given, tmp_path):
    make_backbone("gpt2").save_pretrained(tmp_path / "base")
    named = "nowhere" if given else str(tmp_path / "base")
    folder = write(tmp_path / "medusa", medusa_tensors(own=False), base_model_name_or_path=named)
    load = {"backbone_kwargs": {"dtype": torch.float64}}
    model, _ = load_medusa_heads(folder / "medusa_lm_head.pt", tmp_path / "base" if given else None, **load)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model.config.base_model_name_or_path == str(tmp_path / "base")


def test_what_was_matched_is_logged(tmp_path, caplog):
    folder = write(tmp_path / "medusa", medusa_tensors(1, own=False), medusa_num_heads=1)
    with caplog.at_level(logging.INFO, "hf_targets"):
        load_medusa_heads(folder, make_backbone("gpt2"))
    assert "1 heads, layout 'shared'; 0.0.linear.weight -> heads.layers.0.linear.weight, 0.0.linear" in caplog.text


def test_heads_and_their_configuration_come_from_the_hub(tmp_path):
    make_backbone("gpt2").save_pretrained(tmp_path / "base")
    write(tmp_path / "medusa", medusa_tensors(own=True), base_model_name_or_path=str(tmp_path / "base"))
    code = f"""
import huggingface_hub as hf
from hf_targets.multitoken.medusa import load_medusa_heads
hf.create_repo("me/medusa")
first = hf.upload_folder(repo_id="me/medusa", folder_path={str(tmp_path / "medusa")!r}).oid
hf.delete_file("medusa_lm_head.pt", "me/medusa")
print(load_medusa_heads("me/medusa", revision=first)[1].num_heads)
try: load_medusa_heads("me/medusa")
except ValueError as error: print(error)
"""
    with HubServer() as hub:
        told = run_against(hub, tmp_path / "home", "-c", code).splitlines()
    assert told[0] == "3"
    assert told[1].startswith("me/medusa holds none of medusa_lm_head.safetensors, medusa_lm_head.pt, model.safetens")


def without(state, *names):
    return {name: tensor for name, tensor in state.items() if name not in names}


@pytest.mark.parametrize(
    ("change", "config", "told"),
    [
        (lambda s: without(s, "1.0.linear.bias"), {}, "missing: 1.0.linear.bias; left over: none. It holds 3 heads"),
        (lambda s: without(s, "1.1.weight"), {}, "missing: 1.1.weight; left over: none"),
        (lambda s: without(s, *[n for n in s if n[0] == "1"]), {}, "missing: 1.0.linear.bias, 1.0.linear.weight, 1.1"),
        (lambda s: {**s, "stranger": torch.zeros(1)}, {}, "missing: none; left over: stranger"),
        (lambda s: {**s, "0.1.bias": torch.zeros(1)}, {}, "left over: 0.1.bias"),
        (lambda s: s, {"medusa_num_heads": 4}, "missing: 3.0.linear.bias, 3.0.linear.weight, 3.1.weight; left over: n"),
        (
            lambda s: {**s, "0.1.linear.weight": torch.zeros(1)},
            {},
            r"heads of two residual blocks or more \(0.1.linear",
        ),
        (lambda s: {"model.norm.weight": torch.zeros(1)}, {}, "holds no Medusa heads, but model.norm.weight"),
        (lambda s: {}, {}, "holds no Medusa heads, but nothing"),
        (lambda s: {**s, "0.0.linear.bias": torch.zeros(7)}, {}, r"0.0.linear.bias is \(7,\), not \(32,\); give the"),
        (lambda s: medusa_tensors(own=False, width=16), {}, r"0.0.linear.weight is \(16, 16\), not \(32, 32\); 0.0"),
        (lambda s: medusa_tensors(own=True, vocab=51), {}, r"0.1.weight is \(51, 32\), not \(50, 32\); 1.1.weight is"),
        (lambda s: list(s.values()), {}, "must hold tensors by name and nothing else, got a list"),
        (lambda s: {**s, "lr": 0.1}, {}, "must hold tensors by name and nothing else, got a dict"),
    ],
)
def test_a_file_that_is_not_whole_or_does_not_fit_is_told(change, config, told, tmp_path):
    folder = write(tmp_path / "medusa", change(medusa_tensors(own=True)), **config)
    with pytest.raises(ValueError, match=told):
        load_medusa_heads(folder, make_backbone("gpt2"))


@pytest.mark.parametrize(
    ("change", "config", "told"),
    [
        (lambda s: s, {}, "left over: blocks.0.layers.0.bias, blocks.1.layers.0.bias, blocks.2.layers.0.bias"),
        (lambda s: without(s, "lm_heads.2.weight"), {"medusa_fc_bias": True}, "missing: lm_heads.2.weight; left over"),
        (lambda s: s, {"medusa_fc_bias": True, "original_lm_head": True}, "left over: lm_heads.1.weight, lm_heads.2"),
        (lambda s: s, {"medusa_fc_bias": True, "num_heads": 4}, "3 heads, and config.json declares 4"),
        (lambda s: s, {"medusa_fc_bias": True, "logit_scale": 0.5}, "a logit_scale other than 1 are not supported"),
        (lambda s: {**s, "token_map": torch.arange(9)}, {}, "a truncated vocabulary .token_map. and"),
        (lambda s: {**s, "blocks.0.layers.1.weight": torch.zeros(1)}, {}, "heads of two residual blocks or more"),
    ],
)
def test_a_file_that_vllm_would_read_otherwise_is_told(change, config, told, tmp_path):
    folder = write(tmp_path / "vllm", change(vllm_tensors()), "model.safetensors", **config)
    with pytest.raises(ValueError, match=told):
        load_medusa_heads(folder, make_backbone("gpt2"))


@pytest.mark.parametrize("kept", [0, 10, 3000, -100])
@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_a_file_cut_short_is_told(file, kept, tmp_path):
    path = write(tmp_path / "medusa", medusa_tensors(own=False), file) / file
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="is not a whole file of tensors"):
        load_medusa_heads(path, make_backbone("gpt2"))


class Unsafe:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def test_a_pickle_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "medusa", {**medusa_tensors(own=False), "unsafe": Unsafe()})
    with pytest.raises(ValueError, match="is not a whole file of tensors"):
        load_medusa_heads(folder, make_backbone("gpt2"))
    assert not (tmp_path / "made-by-a-pickle").exists()


def test_arguments_that_lead_nowhere_are_told(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty holds none of medusa_lm_head.safetensors, .*; give the file"):
        load_medusa_heads(tmp_path / "empty", make_backbone("gpt2"))
    folder = write(tmp_path / "medusa", medusa_tensors(own=False))
    with pytest.raises(ValueError, match="no such argument: dtype; there are backbone_kwargs, cache_dir"):
        load_medusa_heads(folder, make_backbone("gpt2"), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="names the base model of these heads; give it as base"):
        load_medusa_heads(folder)


def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    model = make_model("gpt2", head="medusa", target="embedding")
    save_medusa_for_vllm(model, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    torch.nn.init.normal_(model.heads[0].linear.weight)
    monkeypatch.setattr(json, "dumps", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_medusa_for_vllm(model, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_only_separate_output_heads_add_tensors():
    fields = {"ngram_size": 3, "head": "medusa", "target": "embedding"}
    shared = FutureHeads(MultiTokenConfig(**fields), WIDTH, VOCAB)
    assert shared.outputs is None
    assert set(shared.state_dict()) == {f"layers.{h}.linear.{kind}" for h in range(2) for kind in ("weight", "bias")}
    own = FutureHeads(MultiTokenConfig(**fields, separate_output_heads=True), WIDTH, VOCAB)
    assert own.state_dict().keys() - shared.state_dict().keys() == {"outputs.0.weight", "outputs.1.weight"}


def test_separate_output_heads_start_as_copies_and_change_apart():
    fields = MultiTokenConfig(ngram_size=3, target="embedding", separate_output_heads=True)
    heads, output = FutureHeads(fields, WIDTH, VOCAB), OutputMap(shared := torch.nn.Linear(WIDTH, VOCAB, bias=False))
    heads.copy_outputs(shared)
    for n in (1, 2):
        assert heads.output(n, output).layer is heads.outputs[n - 1]
        assert torch.equal(heads.output(n, output).layer.weight, shared.weight)
    with torch.no_grad():
        heads.output(1, output).layer.weight.zero_()
    assert torch.equal(heads.output(2, output).layer.weight, shared.weight)
    assert shared.weight.any()
    assert FutureHeads(MultiTokenConfig(ngram_size=3), WIDTH).output(1, output) is output


def test_an_output_layer_inside_an_adapter_is_refused():
    heads = FutureHeads(MultiTokenConfig(target="embedding", separate_output_heads=True), WIDTH, VOCAB)
    heads.outputs[0] = torch.nn.Sequential(heads.outputs[0])
    with pytest.raises(ValueError, match=r"must be a torch.nn.Linear, got Sequential; leave it out of the adapter's"):
        heads.output(1, OutputMap(torch.nn.Linear(WIDTH, VOCAB)))


@pytest.mark.parametrize("heads_only", [False, True])
def test_separate_output_heads_are_saved_and_loaded(heads_only, tmp_path):
    make_backbone("gpt2").save_pretrained(tmp_path / "base")
    folder = write(tmp_path / "medusa", medusa_tensors(own=True), base_model_name_or_path=str(tmp_path / "base"))
    model, _ = load_medusa_heads(folder)
    model.save_pretrained(tmp_path / "ours", heads_only=heads_only)
    again = MultiTokenForCausalLM.from_pretrained(tmp_path / "ours")
    assert again.config.separate_output_heads
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
