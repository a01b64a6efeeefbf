"""Weights that accelerate keeps elsewhere: every model computes what it computes with its weights at hand."""

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

from hf_targets.backbones.weight_access import call_inside, execution_device, is_readable, whole_state_dict
from hf_targets.multitoken.causal import MultiTokenForCausalLM
from hf_targets.multitoken.medusa import save_medusa_for_vllm
from hf_targets.phrases.model import DynamicVocabForCausalLM
from tests.mdlm_models import clean_ids, make_mdlm
from tests.tiny_models import KINDS, make_any, make_backbone, make_vocabulary, phrase_batch, token_ids
from tests.trainer_runs import assert_same

CPU = torch.device("cpu")
MODELS = [
    (kind, family) for kind in (*KINDS, "separate_output_heads") for family in ("gpt2", "llama")
]  # tied and untied
MODELS += [("mdlm", "plain"), ("mdlm", "curves")]
NEVER = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None}


def make(kind: str, family: str):
    if kind == "mdlm":
        return make_mdlm(family).double()
    if kind == "separate_output_heads":
        base = make_backbone(family)
        return (
            MultiTokenForCausalLM.from_base(base, ngram_size=3, target="embedding", separate_output_heads=True)
            .double()
            .eval()
        )
    return make_any(family, kind).double()


def outputs_of(model, kind: str) -> list[torch.Tensor]:
    """Return a loss, logits, and what the model generates in each of its ways."""
    if kind == "mdlm":
        ids = clean_ids(2, 8)
        output = model(ids, labels=ids, timesteps=torch.tensor([0.5, 0.7]), skip_logits=False)
        sampled = model.generate(batch_size=2, max_length=8, generator=torch.Generator().manual_seed(0))
        return [output.loss.detach(), output.logits.detach(), sampled]
    ids = token_ids(2, 9)
    if kind == "phrases":
        output = model(**phrase_batch(), skip_logits=False)
        generated = [model.generate(ids, phrases=make_vocabulary(), **NEVER)]
    else:
        output = model(ids, labels=ids, nll_weights=None if kind == "separate_output_heads" else [0.0, 0.3])
        weights = [None] if kind == "separate_output_heads" else [None, 0.3]
        generated = [model.generate(ids, ensemble_weight=weight, **NEVER) for weight in weights]
        generated.append(model.generate(ids, draft_tokens=2, **NEVER))
    return [output.loss.detach(), output.logits.detach(), *generated]


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def device_map(model) -> dict[str, str]:
    """Return a map that leaves half of the parts on disk, the output matrix and what it is tied to among them."""
    parts = [f"{name}.{part}" for name, child in model.named_children() for part, _ in child.named_children()]
    on_disk = ("backbone.transformer", "lm_head", "output_layer", "0", "outputs", "projection", "vocab_embed")
    return {name: "disk" if name.endswith(on_disk) else "cpu" for name in parts}


@pytest.mark.parametrize("where", ["cpu", "disk"])
@pytest.mark.parametrize(("kind", "family"), MODELS)
def test_an_offloaded_model_computes_the_same(kind, family, where, tmp_path):
    model = make(kind, family)
    expected = outputs_of(model, kind)
    if where == "cpu":
        cpu_offload(model, execution_device=CPU)
    else:
        disk_offload(model, tmp_path, execution_device=CPU)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert_equal(outputs_of(model, kind), expected)
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize(("kind", "family"), MODELS)
def test_a_model_loaded_by_a_device_map_computes_the_same(kind, family, tmp_path):
    model = make(kind, family)
    expected = outputs_of(model, kind)
    model.save_pretrained(tmp_path / "model")
    loaded = type(model).from_pretrained(
        tmp_path / "model", device_map=device_map(model), offload_folder=tmp_path / "offloaded", dtype=torch.float64
    )
    assert {parameter.device.type for parameter in loaded.parameters()} == {"cpu", "meta"}
    assert_equal(outputs_of(loaded, kind), expected)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_new_parts_on_an_offloaded_base_are_real_and_fit_its_weights(family):
    whole, offloaded = make_backbone(family), make_backbone(family)
    cpu_offload(offloaded, execution_device=CPU)
    models = []
    for base in (whole, offloaded):
        torch.manual_seed(1)
        heads = MultiTokenForCausalLM.from_base(
            base, ngram_size=3, target="embedding", separate_output_heads=True
        ).heads
        torch.manual_seed(1)
        encoder = DynamicVocabForCausalLM.from_base(base, make_backbone(family, 2)).phrase_encoder
        models.append({**heads.state_dict(), **encoder.state_dict()})
    assert not any(tensor.is_meta for tensor in models[1].values())
    for name, tensor in models[0].items():
        torch.testing.assert_close(models[1][name], tensor, msg=name)


def test_a_model_made_on_a_base_with_a_part_on_disk_is_saved_whole(tmp_path):
    base = make_backbone("llama")
    base.save_pretrained(tmp_path / "base")
    where = {"device_map": {"model": "disk", "lm_head": "cpu"}, "offload_folder": tmp_path / "offloaded"}
    for cls, encoder in ((MultiTokenForCausalLM, []), (DynamicVocabForCausalLM, [make_backbone("llama", 2)])):
        model = cls.from_base(tmp_path / "base", *encoder, **where)
        assert any(parameter.is_meta for parameter in model.backbone.parameters())
        model.save_pretrained(tmp_path / cls.__name__)
        assert_same(
            cls.from_pretrained(tmp_path / cls.__name__).backbone.state_dict(), base.state_dict(), rtol=0, atol=0
        )


def test_the_phrase_encoder_cannot_begin_as_a_copy_of_weights_that_are_elsewhere():
    base = make_backbone("gpt2")
    cpu_offload(base, execution_device=CPU)
    with pytest.raises(ValueError, match="weights of GPT2LMHeadModel are offloaded or sharded; give phrase_encoder="):
        DynamicVocabForCausalLM.from_base(base)


def test_an_index_of_an_offloaded_model_is_that_of_the_model():
    vocabulary = make_vocabulary()
    model, offloaded = make("phrases", "llama"), make("phrases", "llama")
    cpu_offload(offloaded, execution_device=CPU)
    assert offloaded.phrase_fingerprint(vocabulary) == model.phrase_fingerprint(vocabulary)


def test_heads_of_an_offloaded_model_are_saved_alone_and_for_vllm(tmp_path):
    files = []
    for name in ("whole", "offloaded"):
        model = MultiTokenForCausalLM.from_base(make_backbone("llama"), target="embedding", head="medusa")
        model.config.base_model_name_or_path = "base"
        if name == "offloaded":
            cpu_offload(model, execution_device=CPU)
        model.save_pretrained(tmp_path / name, heads_only=True)
        save_medusa_for_vllm(model, tmp_path / f"{name}-vllm")
        saved = (tmp_path / name / "heads.safetensors", tmp_path / f"{name}-vllm" / "model.safetensors")
        files.append([load_file(file) for file in saved])
    for ours, theirs in zip(*files, strict=True):
        assert_same(ours, theirs, rtol=0, atol=0)


def test_a_call_inside_a_layer_has_its_weights_and_leaves_it_as_it_was():
    layer, hidden = nn.Linear(3, 4), torch.randn(2, 3)
    model, before = nn.Sequential(layer), dict(layer.__dict__)
    expected = layer(hidden)
    assert is_readable(model) and execution_device(model) == CPU
    assert torch.equal(call_inside(layer, lambda weight, bias, given: F.linear(given, weight, bias), hidden), expected)
    assert dict(layer.__dict__) == before
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    cpu_offload(model, execution_device=CPU)
    assert not is_readable(model) and execution_device(model) == CPU
    assert torch.equal(call_inside(layer, lambda weight, bias, given: F.linear(given, weight, bias), hidden), expected)
    assert layer.weight.is_meta
    assert all(torch.equal(tensor, state[name]) for name, tensor in whole_state_dict(model).items())


def test_what_a_hook_sets_on_a_called_layer_is_set_on_the_layer():
    layer, hidden = nn.Linear(3, 4), torch.randn(2, 3)

    def count(module, _) -> None:
        module.num_calls = getattr(module, "num_calls", 0) + 1

    layer.register_forward_pre_hook(count)
    for expected in (1, 2):
        call_inside(layer, lambda weight, bias, given: given @ weight.T, hidden)
        assert layer.num_calls == expected
    layer(hidden)
    assert layer.num_calls == 3


def test_a_layer_is_called_as_it_is_whatever_is_on_it():
    hidden = torch.randn(2, 3)
    parametrized = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    compiled = nn.Linear(3, 4)
    compiled.compile(backend="eager")
    for layer in (parametrized, compiled):
        inside = call_inside(layer, lambda weight, bias, given: F.linear(given, weight, bias), hidden)
        torch.testing.assert_close(inside, layer(hidden))
