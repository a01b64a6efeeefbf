import json
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import save_file

from hf_targets import CurveConfig, MdlmConfig, MdlmForMaskedDiffusion
from tests.masked_diffusion.models import CURVES, MASK, VOCAB, make_mdlm, masked_ids
from tests.memory import realigned

EMBEDDING, FREQUENCIES = "backbone.vocab_embed.embedding", "backbone.rotary_emb.inv_freq"
BLOCK = {  # of the 12 blocks of kuleshov-group/mdlm-owt
    "norm1.weight": (768,),
    "attn_qkv.weight": (2304, 768),
    "attn_out.weight": (768, 768),
    "norm2.weight": (768,),
    "mlp.0.weight": (3072, 768),
    "mlp.0.bias": (3072,),
    "mlp.2.weight": (768, 3072),
    "mlp.2.bias": (768,),
    "adaLN_modulation.weight": (4608, 128),
    "adaLN_modulation.bias": (4608,),
}
PUBLISHED = {
    EMBEDDING: (50258, 768),
    "backbone.sigma_map.mlp.0.weight": (128, 256),
    "backbone.sigma_map.mlp.0.bias": (128,),
    "backbone.sigma_map.mlp.2.weight": (128, 128),
    "backbone.sigma_map.mlp.2.bias": (128,),
    FREQUENCIES: (32,),
    **{f"backbone.blocks.{i}.{name}": shape for i in range(12) for name, shape in BLOCK.items()},
    "backbone.output_layer.norm_final.weight": (768,),
    "backbone.output_layer.linear.weight": (50258, 768),
    "backbone.output_layer.linear.bias": (50258,),
    "backbone.output_layer.adaLN_modulation.weight": (1536, 128),
    "backbone.output_layer.adaLN_modulation.bias": (1536,),
}
CONFIG = {  # as the published one names them
    "model_type": "mdlm",
    "vocab_size": VOCAB,
    "hidden_dim": 32,
    "n_blocks": 3,
    "n_heads": 4,
    "cond_dim": 8,
    "model_length": 24,
    "dropout": 0.25,
    "time_conditioning": False,
}


def same_weights(one, other):
    tensors = one.state_dict()
    assert other.state_dict().keys() == tensors.keys()
    return all(torch.equal(tensor, tensors[name]) for name, tensor in other.state_dict().items())


def load(source, **config):
    return MdlmForMaskedDiffusion.from_published(source, **{"mask_token_id": MASK, **config})


def write(folder, tensors, config=CONFIG, name="model.safetensors"):
    if name.endswith(".safetensors"):
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name)
    else:
        torch.save(dict(tensors), folder / name)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_layout_is_the_published_one_name_by_name_and_shape_by_shape():
    with torch.device("meta"):
        model = MdlmForMaskedDiffusion(MdlmConfig())
    assert {name: tuple(tensor.shape) for name, tensor in model.to_published().items()} == PUBLISHED
    assert torch.equal(make_mdlm().to_published()[FREQUENCIES], 1.0 / 10_000 ** (torch.arange(0, 8, 2).float() / 8))


def test_a_state_dict_comes_back_bit_for_bit():
    model, canvas = make_mdlm(), masked_ids(2, 9)
    again = load(model.to_published())
    assert same_weights(model, again)
    assert not again.training
    assert torch.equal(again(canvas).logits, model(canvas).logits)
    assert again.config.mask_token_id == VOCAB - 1
    assert again.config.max_position_embeddings == 1024
    with torch.no_grad():
        again.get_input_embeddings().weight.zero_()
    assert model.get_input_embeddings().weight.any()


def test_a_model_has_the_type_of_numbers_that_is_asked_for():
    tensors = make_mdlm().to_published()
    halves = {name: tensor.half() if name != FREQUENCIES else tensor for name, tensor in tensors.items()}
    for dtype, expected in ((None, torch.float32), ("bfloat16", torch.bfloat16), ("auto", torch.float16)):
        assert load(halves, dtype=dtype).dtype == expected
    with pytest.raises(ValueError, match="drop_out"):
        load(tensors, drop_out=0.5)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("time_conditioning", [False, True])
def test_a_folder_comes_back_bit_for_bit_with_what_its_config_says(name, time_conditioning, tmp_path):
    model, canvas, times = make_mdlm(time_conditioning=time_conditioning), masked_ids(2, 9), torch.tensor([0.2, 0.9])
    write(tmp_path, model.to_published(), {**CONFIG, "time_conditioning": time_conditioning}, name)
    for source in (tmp_path, str(tmp_path), tmp_path / name):
        again = realigned(load(source))
        assert same_weights(model, again)
        assert torch.equal(again(canvas, timesteps=times).logits, model(canvas, timesteps=times).logits)
        config = again.config
        assert (config.max_position_embeddings, config.dropout, config.num_attention_heads) == (24, 0.25, 4)
        assert config.time_conditioning == time_conditioning
    again.save_pretrained(tmp_path / "ours")
    assert same_weights(model, MdlmForMaskedDiffusion.from_pretrained(tmp_path / "ours"))


@pytest.mark.parametrize("kind", CURVES)
def test_fine_tuning_of_a_curve_begins_with_published_weights(kind):
    curve = CURVES[kind] and CurveConfig(**CURVES[kind])
    original = make_mdlm().to_published()
    model = load(original, curve=curve)
    without = model.with_curve(None)
    assert all(torch.equal(tensor, original[name]) for name, tensor in without.to_published().items())
    with nullcontext() if curve is None or curve.num_curves == 1 else pytest.raises(ValueError, match="backbone"):
        assert model.to_published().keys() == original.keys()


@pytest.mark.parametrize("num_heads", [1, 2, 8])
def test_heads_follow_from_the_frequencies_or_else_from_the_config(num_heads, tmp_path):
    model, canvas = make_mdlm(num_attention_heads=num_heads), masked_ids(2, 9)
    tensors, expected = model.to_published(), model(canvas).logits
    assert torch.equal(load(tensors)(canvas).logits, expected)
    del tensors[FREQUENCIES]
    with pytest.raises(ValueError, match="num_attention_heads"):
        load(tensors)
    write(tmp_path, tensors, {**CONFIG, "n_heads": num_heads})
    assert torch.equal(realigned(load(tmp_path))(canvas).logits, expected)
    assert torch.equal(load(tensors, num_attention_heads=num_heads)(canvas).logits, expected)


def test_frequencies_rounded_to_half_precision_are_taken_and_others_refused():
    tensors = make_mdlm().to_published()
    tensors[FREQUENCIES] = tensors[FREQUENCIES].bfloat16()
    load(tensors)
    with pytest.raises(ValueError, match="rotary frequencies"):
        load({**tensors, FREQUENCIES: 1.0 / 500_000 ** (torch.arange(0, 8, 2) / 8)})
    with pytest.raises(ValueError, match="num_attention_heads=8"):
        load(tensors, num_attention_heads=8)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"backbone.blocks.1.mlp.0.bias": None}, "missing"),
        ({"extra": torch.ones(1)}, "not in the model"),
        ({"backbone.output_layer.linear.weight": torch.ones(49, 32)}, "another shape"),
        ({EMBEDDING: None}, "embedding"),
    ],
)
def test_tensors_missing_left_over_or_of_another_shape_are_refused(changes, word):
    tensors = {**make_mdlm().to_published(), **changes}
    with pytest.raises(ValueError, match=word):
        load({name: tensor for name, tensor in tensors.items() if tensor is not None})


def test_one_layout_is_told_from_the_other(tmp_path):
    make_mdlm().save_pretrained(tmp_path / "ours")
    with pytest.raises(ValueError, match="from_pretrained"):
        load(tmp_path / "ours")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    write(theirs, make_mdlm().to_published())
    with pytest.raises(ValueError, match="from_published"):
        MdlmForMaskedDiffusion.from_pretrained(theirs)
