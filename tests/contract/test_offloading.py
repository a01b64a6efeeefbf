"""Weights that accelerate keeps elsewhere: every model computes what it computes with its weights at hand."""

from functools import partial

import pytest
import torch
from accelerate import cpu_offload, disk_offload

from hf_targets import DynamicVocabForCausalLM, MultiTokenForCausalLM
from tests.model_cases import parametrized
from tests.tiny_models import make_backbone, new_part
from tests.trainer_runs import assert_same

CPU = torch.device("cpu")
OFFLOADED = ["difference-llama", "phrases-gpt2", "separate_output_heads-gpt2", "separate_output_heads-llama"]
OFFLOADED += ["embedding-llama", "conditional-llama", "mdlm-curves", "difference-marian", "difference-t5"]
OFFLOADED += ["masked-masked_only-modernbert", "blocks-curves", "tensorized", "difference-tensorized"]
OFFLOADED += ["gaussian-curves", "gaussian-heads", "gaussian-heads on a curve"]
LOADED = ["difference-gpt2", "phrases-llama", "phrases-gpt2", "mdlm-plain", "masked-difference-bert", "blocks-words"]
LOADED += ["gaussian-difformer", "embedding-bart", "conditional-mt5"]
"""With `OFFLOADED` heads and encoders of all kinds, on tied and untied output matrices."""
every_offloaded_kind, every_loaded_kind = parametrized(OFFLOADED), parametrized(LOADED)


def outputs_of(model, case) -> list[torch.Tensor]:
    """Return a loss, logits, and what the model generates in each of its ways."""
    output = model(**case.batch(), **case.options, skip_logits=False)
    return [output.loss.detach(), output.logits.detach(), *case.generate(model)]


def assert_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def device_map(model) -> dict[str, str]:
    """Return a map that leaves half of the parts on disk, the output matrix and what it is tied to among them."""
    parts = [f"{name}.{part}" for name, child in model.named_children() for part, _ in child.named_children()]
    parts += [name for name, child in model.named_children() if not [*child.children()]]
    own = (*model.named_parameters(), *model.named_buffers())
    parts += [name for name, _ in own if name.count(".") == 1 and name.split(".")[0] not in parts]
    on_disk = ("backbone.transformer", "lm_head", "output_layer", "0", "outputs", "projection", "vocab_embed")
    of_masked = ("backbone.bert", "backbone.cls", "backbone.head", "backbone.decoder")
    of_pairs = ("backbone.model", "backbone.shared", "backbone.encoder", "backbone.decoder")
    of_bare = ("model.layers", "model.embed_tokens")
    of_gaussian = ("decoder.layers", "embed_tokens")
    endings = (*on_disk, *of_pairs, *of_masked, *of_bare, *of_gaussian)
    return {name: "disk" if name.endswith(endings) else "cpu" for name in parts}


@every_offloaded_kind
def test_an_offloaded_model_computes_the_same(case, tmp_path):
    model = case.make().double()
    expected = outputs_of(model, case)
    if "device map" in case.lacks:  # others have weights on a disk below
        disk_offload(model, tmp_path, execution_device=CPU)
    else:
        cpu_offload(model, execution_device=CPU)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert_equal(outputs_of(model, case), expected)
    assert all(parameter.is_meta for parameter in model.parameters())


@every_loaded_kind
def test_a_model_loaded_by_a_device_map_computes_the_same(case, tmp_path):
    model = case.make().double()
    expected = outputs_of(model, case)
    model.save_pretrained(tmp_path / "model")
    loaded = type(model).from_pretrained(
        tmp_path / "model", device_map=device_map(model), offload_folder=tmp_path / "offloaded", dtype=torch.float64
    )
    assert {parameter.device.type for parameter in loaded.parameters()} == {"cpu", "meta"}
    assert_equal(outputs_of(loaded, case), expected)


def with_heads(base, **options):
    return MultiTokenForCausalLM.from_base(
        base, ngram_size=3, target="embedding", separate_output_heads=True, **options
    )


def with_encoder(base, **options):
    return DynamicVocabForCausalLM.from_base(base, make_backbone("llama", 2), **options)


makers = pytest.mark.parametrize("make", [with_heads, with_encoder])


@makers
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_new_part_made_on_an_offloaded_base_is_real_and_fits_its_weights(make, family):
    states = []
    for place in (lambda _: None, partial(cpu_offload, execution_device=CPU)):
        place(base := make_backbone(family))
        torch.manual_seed(1)
        states.append(new_part(make(base)).state_dict())
    assert not any(tensor.is_meta for tensor in states[1].values())
    assert_same(states[1], states[0])


@makers
def test_a_model_made_on_a_base_with_a_part_on_disk_is_saved_with_all_of_it(make, tmp_path):
    base = make_backbone("llama")
    base.save_pretrained(tmp_path / "base")
    where = {"device_map": {"model": "disk", "lm_head": "cpu"}, "offload_folder": tmp_path / "offloaded"}
    model = make(tmp_path / "base", **where)
    assert any(parameter.is_meta for parameter in model.backbone.parameters())
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model")
    assert_same(again.backbone.state_dict(), base.state_dict(), rtol=0, atol=0)
