import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hf_targets import MultiTokenForCausalLM
from hf_targets.backbones.configuration import PACKAGE_IMPORT
from tests.memory import realigned
from tests.tiny_models import make_backbone, make_model, token_ids


@pytest.fixture
def base_folder(tmp_path):
    make_backbone("gpt2").save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def heads_folder(base_folder, tmp_path):
    model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=3, ensemble_weight=0.2)
    model.save_pretrained(tmp_path / "heads", heads_only=True)
    return tmp_path / "heads", model


def edit_tensors(file, change):
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def test_heads_alone_come_back_on_their_base_model(heads_folder):
    folder, model = heads_folder
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "generation_config.json",
        "heads.safetensors",
        PACKAGE_IMPORT,
    ]
    again = realigned(AutoModelForCausalLM.from_pretrained(folder))
    ids = token_ids(2, 8)
    assert again.config.ensemble_weight == 0.2
    assert not again.config.heads_only
    assert not again.training
    assert torch.equal(again(ids).logits, realigned(model).eval()(ids).logits)
    assert again.generation_config.to_dict() == model.generation_config.to_dict()


def test_loading_arguments_reach_the_base_model(heads_folder):
    again = MultiTokenForCausalLM.from_pretrained(heads_folder[0], dtype=torch.bfloat16, ensemble_weight=0.5)
    assert {p.dtype for p in again.parameters()} == {torch.bfloat16}
    assert again.config.ensemble_weight == 0.5


@pytest.mark.parametrize("form", ["full", "heads"])
def test_a_missing_and_an_extra_tensor_are_listed(form, heads_folder, tmp_path):
    folder, model = heads_folder
    prefix = ""
    if form == "full":
        folder, prefix = tmp_path / "full", "heads."
        model.save_pretrained(folder)
    (file,) = folder.glob("*.safetensors")

    def change(tensors):
        del tensors[f"{prefix}layers.1.inner.weight"]
        tensors["stranger"] = torch.zeros(1)

    edit_tensors(file, change)
    with pytest.raises(ValueError, match=rf"missing: {prefix}layers.1.inner.weight; not in the model: stranger"):
        MultiTokenForCausalLM.from_pretrained(folder)


def test_a_file_cut_short_is_told(heads_folder):
    file = heads_folder[0] / "heads.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"heads\.safetensors is not a whole file of tensors"):
        AutoModelForCausalLM.from_pretrained(heads_folder[0])


def test_heads_of_a_base_model_without_a_name_are_not_saved_alone(tmp_path):
    with pytest.raises(ValueError, match="this one has no name"):
        make_model("gpt2").save_pretrained(tmp_path / "heads", heads_only=True)
    assert not (tmp_path / "heads").exists()


def test_heads_of_a_trained_backbone_are_saved_alone_once_the_backbone_is_saved(heads_folder, tmp_path):
    model = MultiTokenForCausalLM.from_pretrained(heads_folder[0])
    with torch.no_grad():
        model.backbone.get_input_embeddings().weight.mul_(1.5)
    with pytest.raises(ValueError, match="this one differs from"):
        model.save_pretrained(tmp_path / "again", heads_only=True)
    assert not (tmp_path / "again").exists()
    model.backbone.save_pretrained(tmp_path / "trained")
    model.config.base_model_name_or_path = str(tmp_path / "trained")
    model.save_pretrained(tmp_path / "again", heads_only=True)
    ids = token_ids(1, 8)
    again = realigned(MultiTokenForCausalLM.from_pretrained(tmp_path / "again"))
    assert torch.equal(again(ids).logits, realigned(model).eval()(ids).logits)


def test_saving_the_whole_model_loads_without_its_base(heads_folder, base_folder, tmp_path):
    folder, model = heads_folder
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "full")
    for path in base_folder.iterdir():
        path.unlink()
    ids = token_ids(1, 8)
    again = realigned(AutoModelForCausalLM.from_pretrained(tmp_path / "full"))
    assert torch.equal(again(ids).logits, realigned(model).eval()(ids).logits)
    assert json.loads((tmp_path / "full" / "config.json").read_text()).get("heads_only", False) is False


def test_wrapping_changes_nothing_of_the_base_model():
    base = make_backbone("llama")
    before, attention = base.config.to_dict(), base.config._attn_implementation
    model = MultiTokenForCausalLM.from_base(base)
    assert model.backbone is base
    assert base.config.to_dict() == before
    assert base.config._attn_implementation == attention
    with pytest.raises(ValueError, match=r"has future-token heads already; give its `.backbone`"):
        MultiTokenForCausalLM.from_base(model)


@pytest.mark.parametrize(
    ("base", "fields", "told"),
    [
        ("backbone", {"ngram": 3}, "no such field of MultiTokenConfig: ngram; there are ngram_size, target"),
        ("configuration", {}, "base must be a Transformers model, its name or its path, got GPT2Config"),
    ],
)
def test_wrong_arguments_are_named(base, fields, told):
    backbone = make_backbone("gpt2")
    with pytest.raises(ValueError, match=told):
        MultiTokenForCausalLM.from_base(backbone if base == "backbone" else backbone.config, **fields)


def test_parts_put_into_a_trained_model_keep_their_weights():
    base = make_backbone("llama", tie_word_embeddings=False)
    base.lm_head = torch.nn.Linear(32, 50, bias=False)
    base.model.layers[0].mlp.up_proj = torch.nn.Linear(32, 64, bias=False)
    before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    MultiTokenForCausalLM.from_base(base)
    for name, tensor in base.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("cls", [MultiTokenForCausalLM, AutoModelForCausalLM])
def test_heads_alone_load_their_base_with_what_it_was_given(cls, heads_folder):
    given = {"use_cache": False, "pad_token_id": 3, "output_hidden_states": True, "attn_implementation": "eager"}
    model = cls.from_pretrained(heads_folder[0], **given)
    output = model(token_ids(1, 4))
    assert output.past_key_values is None and output.hidden_states is not None
    assert model.config.pad_token_id == 3 and model.backbone.config._attn_implementation == "eager"
