import json
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
from hf_targets.training.lora import add_lora
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


@pytest.mark.parametrize("given", [False, True])
def test_the_base_model_is_the_one_given_or_the_one_that_config_json_names(given, tmp_path):
    make_backbone("gpt2").save_pretrained(tmp_path / "base")
    named = "nowhere" if given else str(tmp_path / "base")
    folder = write(tmp_path / "medusa", medusa_tensors(own=False), base_model_name_or_path=named)
    load = {"backbone_kwargs": {"dtype": torch.float64}}
    model, _ = load_medusa_heads(folder / "medusa_lm_head.pt", tmp_path / "base" if given else None, **load)
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert model.config.base_model_name_or_path == str(tmp_path / "base")


def without(state, *names):
    return {name: tensor for name, tensor in state.items() if name not in names}


class Unsafe:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


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


@pytest.mark.parametrize(
    ("change", "config", "told"),
    [
        (lambda s: without(s, "1.0.linear.bias"), {}, "missing: 1.0.linear.bias"),
        (lambda s: {**s, "stranger": torch.zeros(1)}, {}, "left over: stranger"),
        (lambda s: s, {"medusa_num_heads": 4}, "missing: 3.0.linear.bias"),
        (lambda s: {**s, "0.1.linear.weight": torch.zeros(1)}, {}, "more than one residual block"),
        (lambda s: {"model.norm.weight": torch.zeros(1)}, {}, "no Medusa heads"),
        (lambda s: medusa_tensors(own=False, width=16), {}, r"layers.0.linear.weight is \(16, 16\)"),
        (lambda s: {**s, "lr": 0.1}, {}, "must hold tensors by name"),
        (lambda s: {**s, "unsafe": Unsafe()}, {}, "not a whole file of tensors"),
    ],
)
def test_a_file_that_does_not_fit_is_told_and_no_code_of_it_is_run(change, config, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "medusa", change(medusa_tensors(own=True)), **config)
    with pytest.raises(ValueError, match=told):
        load_medusa_heads(folder, make_backbone("gpt2"))
    assert not (tmp_path / "made-by-a-pickle").exists()


@pytest.mark.parametrize("file", ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"])
def test_the_heads_of_a_whole_model_are_loaded_as_its_error_says(file, tmp_path):
    base, heads = make_backbone("llama"), medusa_tensors(2, own=True)
    tensors = {**base.state_dict(), **{f"medusa_head.{name}": tensor for name, tensor in heads.items()}}
    base.save_pretrained(tmp_path / "base")
    (tmp_path / "whole").mkdir()
    if file.endswith(".json"):  # the shards are not looked at
        (tmp_path / "whole" / file).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, "one")}))
    elif file.endswith(".bin"):
        torch.save(tensors, tmp_path / "whole" / file)
    else:
        save_file(tensors, tmp_path / "whole" / file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"a whole model, .* \(Medusa-2\)"):
        load_medusa_heads(tmp_path / "whole")
    model, report = load_medusa_heads(write(tmp_path / "heads", heads), tmp_path / "base")
    assert report.num_heads == 2
    assert torch.equal(model.heads[1].linear.weight, heads["1.0.linear.weight"])


@pytest.mark.parametrize(
    ("family", "fields", "told"),
    [
        ("gpt2", {"head": "mlp", "target": "embedding"}, "head='mlp'"),
        ("gpt2", {"head": "medusa", "target": "difference"}, "target='difference'"),
        ("phi", {"head": "medusa", "target": "embedding"}, "output bias"),
    ],
)
def test_heads_that_vllm_cannot_hold_are_not_written(family, fields, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        save_medusa_for_vllm(make_model(family, **fields), tmp_path / "vllm")
    assert not (tmp_path / "vllm").exists()


def test_a_release_of_vllm_without_medusa_is_refused(tmp_path):
    model = make_model("gpt2", head="medusa", target="embedding")
    with pytest.raises(ValueError, match=r"up to 0\.32, got 0\.33"):
        save_medusa_for_vllm(model, tmp_path, engine_version="0.33.0")
    save_medusa_for_vllm(model, tmp_path, engine_version="0.32.1")


def test_heads_that_were_trained_beside_adapters_are_written_once_these_are_merged(tmp_path):
    tuned = add_lora(make_model("gpt2", head="medusa", target="embedding"), 2)
    for model in (tuned, tuned.get_base_model()):
        with pytest.raises(ValueError, match="merge_and_unload"):
            save_medusa_for_vllm(model, tmp_path / "vllm")
    save_medusa_for_vllm(tuned.merge_and_unload(), tmp_path / "vllm")
