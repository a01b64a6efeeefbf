"""Both forms of checkpoint: the whole model, and heads alone, which know their base model and refuse another."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hf_targets import MultiTokenForCausalLM
from hf_targets.backbones import wrapping
from hf_targets.backbones.configuration import PACKAGE_IMPORT
from tests.memory import realigned
from tests.tiny_models import make_backbone, make_model, token_ids

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def base_folder(tmp_path):
    make_backbone("llama").save_pretrained(tmp_path / "base", max_shard_size="20KB")
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


def take_a_step(model, learning_rate=1e-4):
    """Train everything that takes gradients for one step, as small as fine-tuning's."""
    ids = token_ids(2, 8)
    model.train()(ids, labels=ids).loss.backward()
    torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=learning_rate).step()


@pytest.mark.parametrize("stored", DTYPES[:2], ids=str)
def test_heads_load_with_every_type_that_the_base_is_loaded_with(stored, base_folder, tmp_path):
    AutoModelForCausalLM.from_pretrained(base_folder).to(stored).save_pretrained(base_folder)
    for saved in DTYPES[:2]:
        model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=2, backbone_kwargs={"dtype": saved})
        model.save_pretrained(tmp_path / "heads", heads_only=True)
        model.to(torch.bfloat16).save_pretrained(tmp_path / "cast", heads_only=True)
        for folder, dtype in (("heads", torch.float32), ("heads", torch.bfloat16), ("cast", torch.float16)):
            MultiTokenForCausalLM.from_pretrained(tmp_path / folder, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_base_that_was_trained_since_is_refused(dtype, heads_folder, base_folder):
    base = AutoModelForCausalLM.from_pretrained(base_folder)
    take_a_step(base)
    base.save_pretrained(base_folder)
    with pytest.raises(ValueError, match=rf"made for a base model that differs from {base_folder}"):
        MultiTokenForCausalLM.from_pretrained(heads_folder[0], dtype=dtype)


@pytest.mark.parametrize("trained", ["embed_tokens", "lm_head", "layers.1.mlp.up_proj", "norm"])
def test_a_base_of_which_one_part_was_trained_is_refused(trained, heads_folder, base_folder):
    base = AutoModelForCausalLM.from_pretrained(base_folder)
    with torch.no_grad():
        for name, weight in base.named_parameters():
            if f"{trained}.weight" in name:
                weight.mul_(1.01)
    base.save_pretrained(base_folder)
    with pytest.raises(ValueError, match="differs from"):
        MultiTokenForCausalLM.from_pretrained(heads_folder[0])


@pytest.mark.parametrize("other", [{"seed": 1}, {"vocab_size": 60}, {"num_hidden_layers": 1}], ids=str)
def test_another_base_is_refused(other, heads_folder, tmp_path):
    make_backbone("llama", **other).save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match=rf"differs from {tmp_path / 'other'}"):
        MultiTokenForCausalLM.from_pretrained(heads_folder[0], base_model_name_or_path=str(tmp_path / "other"))


def test_another_configuration_of_the_same_weights_is_taken(heads_folder, base_folder):
    base = AutoModelForCausalLM.from_pretrained(base_folder)
    base.config.pad_token_id = 7
    base.save_pretrained(base_folder)
    assert MultiTokenForCausalLM.from_pretrained(heads_folder[0]).config.pad_token_id == 7


def test_a_copy_of_the_base_elsewhere_is_taken(heads_folder, base_folder, tmp_path):
    base_folder.rename(tmp_path / "moved")
    with pytest.raises(OSError, match="give base_model_name_or_path="):
        MultiTokenForCausalLM.from_pretrained(heads_folder[0])
    again = MultiTokenForCausalLM.from_pretrained(heads_folder[0], base_model_name_or_path=str(tmp_path / "moved"))
    assert again.config.base_model_name_or_path == str(tmp_path / "moved")


def test_heads_alone_load_their_base_as_it_was_loaded(base_folder, tmp_path, monkeypatch):
    load, asked = AutoModelForCausalLM.from_pretrained, []
    monkeypatch.setattr(
        wrapping.AutoModelForCausalLM, "from_pretrained", lambda name, **given: (asked.append(given), load(name))[1]
    )
    given = {"gguf_file": "base.gguf", "revision": "v1", "trust_remote_code": True}
    MultiTokenForCausalLM.from_base(base_folder, ngram_size=2, **given).save_pretrained(tmp_path, heads_only=True)
    for _ in range(2):
        model = MultiTokenForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        assert asked[-1] == {"gguf_file": "base.gguf", "revision": "v1", "dtype": torch.float32}
        model.save_pretrained(tmp_path, heads_only=True)
    MultiTokenForCausalLM.from_pretrained(tmp_path, base_model_name_or_path=f"{base_folder}/")
    assert asked[-1] == {}, "another base is loaded as the caller says"
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_loading": {"trust_remote_code": True}}))
    MultiTokenForCausalLM.from_pretrained(tmp_path)
    assert asked[-1] == {}, "a checkpoint allows no code"


def test_heads_of_a_base_on_this_machine_are_not_uploaded_alone(heads_folder, tmp_path):
    for push in ({"repo_id": "me/heads"}, {}):
        with pytest.raises(ValueError, match="path of this machine"):
            heads_folder[1].save_pretrained(tmp_path / "pushed", heads_only=True, push_to_hub=True, **push)
    assert not (tmp_path / "pushed").exists()


def test_heads_trained_on_a_frozen_backbone_are_saved_alone(base_folder, tmp_path):
    model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=3)
    model.backbone.requires_grad_(False)
    take_a_step(model)
    model.save_pretrained(tmp_path / "heads", heads_only=True)
    again = MultiTokenForCausalLM.from_pretrained(tmp_path / "heads")
    assert torch.equal(again.heads[1].inner.weight, model.heads[1].inner.weight)


def test_heads_beside_an_adapter_or_of_a_resized_base_are_not_saved_alone(base_folder, tmp_path):
    model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=3)
    model.resize_token_embeddings(60)
    with pytest.raises(ValueError, match="differs from"):
        model.save_pretrained(tmp_path / "heads", heads_only=True)
    model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=3)
    get_peft_model(model, LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(ValueError, match="differs from"):
        model.save_pretrained(tmp_path / "heads", heads_only=True)


@pytest.mark.parametrize("trained", [False, True])
def test_a_model_that_was_loaded_whole_is_compared_with_its_base(trained, base_folder, tmp_path):
    model = MultiTokenForCausalLM.from_base(base_folder, ngram_size=3)
    if trained:
        take_a_step(model)
    model.save_pretrained(tmp_path / "whole")
    model = MultiTokenForCausalLM.from_pretrained(tmp_path / "whole")
    if trained:
        with pytest.raises(ValueError, match="saves no backbone, and this one differs from"):
            model.save_pretrained(tmp_path / "heads", heads_only=True)
    else:
        model.save_pretrained(tmp_path / "heads", heads_only=True)
        MultiTokenForCausalLM.from_pretrained(tmp_path / "heads")


def test_heads_put_on_a_backbone_with_heads_know_the_backbone(base_folder, tmp_path):
    MultiTokenForCausalLM.from_base(base_folder, ngram_size=2).save_pretrained(tmp_path / "first")
    backbone = MultiTokenForCausalLM.from_pretrained(tmp_path / "first").backbone
    model = MultiTokenForCausalLM.from_base(backbone, ngram_size=3, base_model_name_or_path=str(tmp_path / "first"))
    model.save_pretrained(tmp_path / "second", heads_only=True)
    assert len(MultiTokenForCausalLM.from_pretrained(tmp_path / "second").heads) == 2


def test_heads_without_a_hash_of_their_base_load(heads_folder):
    file = heads_folder[0] / "heads.safetensors"
    save_file(load_file(file), file, metadata={"format": "pt"})
    MultiTokenForCausalLM.from_pretrained(heads_folder[0])


@pytest.mark.parametrize(
    ("record", "told"),
    [
        *(({"base_model_name_or_path": name}, "names no base model") for name in (None, "")),
        ({"base_model_name_or_path": "."}, "names itself"),
        ({"base_loading": {"quantization_config": "x"}}, "quantization_config="),
        ({"base_loading": {"subfolder": 5}}, "subfolder="),
    ],
)
def test_heads_with_a_strange_record_of_their_base_ask_nobody_for_it(record, told, heads_folder, monkeypatch):
    monkeypatch.chdir(heads_folder[0])
    file = heads_folder[0] / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **record}))
    monkeypatch.setattr(wrapping.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("asked"))
    with pytest.raises(ValueError, match=told):
        MultiTokenForCausalLM.from_pretrained(heads_folder[0])
