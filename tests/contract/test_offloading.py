"""Weights that accelerate keeps elsewhere: every model computes what it computes with its weights at hand."""

import torch
from accelerate import cpu_offload, disk_offload

from tests.model_cases import CASES, ONE_OF_A_CLASS, parametrized

CPU = torch.device("cpu")
KINDS = [  # of heads and encoders, on tied and untied output matrices
    *(
        f"{kind}-{family}"
        for kind in ("difference", "phrases", "separate_output_heads")
        for family in ("gpt2", "llama")
    ),
    "embedding-llama",
    "conditional-llama",
    "mdlm-plain",
    "mdlm-curves",
    "difference-marian",
    "embedding-bart",
    "difference-t5",
    "conditional-mt5",
    "masked-difference-bert",
    "masked-masked_only-modernbert",
    "blocks-words",
    "blocks-curves",
    "tensorized",
    "difference-tensorized",
    *(name for name in CASES if name.startswith("gaussian-")),
]
every_kind = parametrized(KINDS)
LOADED = (*(name for name in ONE_OF_A_CLASS if name in KINDS), "phrases-llama", "embedding-bart", "conditional-mt5")
every_loadable_kind = parametrized(name for name in LOADED if "device map" not in CASES[name].lacks)


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


@every_kind
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


@every_loadable_kind
def test_a_model_loaded_by_a_device_map_computes_the_same(case, tmp_path):
    model = case.make().double()
    expected = outputs_of(model, case)
    model.save_pretrained(tmp_path / "model")
    loaded = type(model).from_pretrained(
        tmp_path / "model", device_map=device_map(model), offload_folder=tmp_path / "offloaded", dtype=torch.float64
    )
    assert {parameter.device.type for parameter in loaded.parameters()} == {"cpu", "meta"}
    assert_equal(outputs_of(loaded, case), expected)
