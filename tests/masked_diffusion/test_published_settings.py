import json
import re
import warnings
from collections import OrderedDict

import pytest
import torch

from hf_targets import MdlmConfig, MdlmForMaskedDiffusion, train_bpe_tokenizer
from hf_targets.masked_diffusion.published_settings import known_mask, settings_of_training
from tests.masked_diffusion.models import MASK, VOCAB, make_mdlm, masked_ids
from tests.masked_diffusion.published_checkpoints import FREQUENCIES, checkpoint, hyper_parameters, save_with_objects
from tests.masked_diffusion.test_published import CONFIG, same_weights, write
from tests.memory import realigned

load = MdlmForMaskedDiffusion.from_published


def test_the_mask_is_never_guessed(tmp_path):
    tensors = make_mdlm().to_published()
    says = rf"which of its {VOCAB} tokens is the mask.*mask_token_id=.*103 for bert-base-uncased, or {VOCAB - 1} where"
    with pytest.raises(ValueError, match=says):
        load(tensors)
    for number, told in enumerate(({"mask_token_id": 5}, {"mask_index": 5})):
        (tmp_path / str(number)).mkdir()
        assert load(write(tmp_path / str(number), tensors, {**CONFIG, **told})).config.mask_token_id == 5
    assert load(tensors, mask_token_id=7).config.mask_token_id == 7
    assert known_mask(50258, "the published model") == 50257
    with pytest.raises(ValueError, match="which of its 30522 tokens is the mask"):
        known_mask(30522, "a model of LM1B")


def test_the_mask_is_that_of_the_tokenizer_that_the_checkpoint_names():
    named = hyper_parameters(data={"tokenizer_name_or_path": "bert-base-uncased"})
    assert settings_of_training(named, "it")["mask_token_id"] == 103
    assert settings_of_training(hyper_parameters(), "it")["mask_token_id"] == 50257
    other = hyper_parameters(data={"tokenizer_name_or_path": "text8"})
    assert "mask_token_id" not in settings_of_training(other, "it")
    tokenizer = train_bpe_tokenizer(["the cat\n"] * 9, vocab_size=264)
    assert settings_of_training({**other, "tokenizer": tokenizer}, "it")["mask_token_id"] == len(tokenizer)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    assert settings_of_training({**other, "tokenizer": tokenizer}, "it")["mask_token_id"] == len(tokenizer) - 1


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("objects", [True, False])
def test_a_training_checkpoint_is_read_with_its_averaged_weights_and_its_settings(nested, objects, tmp_path):
    model = make_mdlm(time_conditioning=True, noise_schedule="geometric", sigma_max=9.0, num_attention_heads=2)
    noise = {"type": "geometric", "sigma_min": 1e-3, "sigma_max": 9.0}
    sizes = {"length": 24, "n_heads": 2, "dropout": 0.25}
    hyper = hyper_parameters(time_conditioning=True, noise=noise, model=sizes, T=50)
    content = checkpoint(model, hyper_parameters=hyper if nested or objects else hyper["config"])
    del content["state_dict"][FREQUENCIES]
    file = tmp_path / "last.ckpt"
    save_with_objects(content, file) if objects else torch.save(content, file)
    with pytest.warns(
        UserWarning, match=f"trained with mask_token_id=50257, and you gave mask_token_id={MASK}, which is used"
    ):
        again = realigned(load(file, mask_token_id=MASK))
    assert same_weights(model, again)
    config = again.config
    assert (config.max_position_embeddings, config.dropout, config.num_attention_heads) == (24, 0.25, 2)
    assert (config.noise_schedule, config.sigma_min, config.sigma_max) == ("geometric", 1e-3, 9.0)
    assert (config.time_conditioning, config.num_diffusion_steps) == (True, 50)
    canvas, times = masked_ids(2, 9), torch.tensor([0.2, 0.9])
    assert torch.equal(again(canvas, timesteps=times).logits, model(canvas, timesteps=times).logits)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("loglinear", "log_linear"),
        ("cosine", "cosine"),
        ("cosinesqr", "cosine_squared"),
        ("linear", "linear"),
        ("geometric", "geometric"),
    ],
)
def test_noise_is_that_of_the_published_program(theirs, ours):
    given = {"type": theirs, "sigma_min": 0.01, "sigma_max": 8.0}
    told = settings_of_training(hyper_parameters(noise=given), "it")
    sigmas = {"sigma_min": 0.01, "sigma_max": 8.0} if ours in ("linear", "geometric") else {}
    assert {name: value for name, value in told.items() if name in ("noise_schedule", "sigma_min", "sigma_max")} == {
        "noise_schedule": ours,
        **sigmas,
    }
    schedule = MdlmForMaskedDiffusion(MdlmConfig(**{**told, "vocab_size": 50258, "hidden_size": 8})).schedule
    t = torch.linspace(0.01, 1, 20, dtype=torch.float64)
    cosine = torch.cos(t * torch.pi / 2)
    sigma = {
        "loglinear": -torch.log1p(-(1 - 1e-3) * t),
        "cosine": -torch.log(1e-3 + (1 - 1e-3) * cosine),
        "cosinesqr": -torch.log(1e-3 + (1 - 1e-3) * cosine**2),
        "linear": 0.01 + t * (8 - 0.01),
        "geometric": 0.01 ** (1 - t) * 8**t,
    }[theirs]
    torch.testing.assert_close(schedule.sigma(t), sigma, rtol=1e-9, atol=1e-12)


def test_a_setting_that_refers_to_another_is_not_told():
    told = settings_of_training(hyper_parameters(model={"length": "${block_size}", "n_heads": 4}), "it")
    assert "max_position_embeddings" not in told and told["num_attention_heads"] == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parameterization": "sedd"}, "trained with parameterization='sedd', and only 'subs' can be read"),
        ({"backbone": "dimamba"}, "trained with backbone='dimamba', and only 'dit' and 'hf_dit'"),
        ({"noise": {"type": "cubic"}}, "the noise 'cubic', known are loglinear, cosine, cosinesqr, linear, geometric"),
        ({"training": {"change_of_variables": True}, "time_conditioning": True}, "another time than sigma"),
    ],
)
def test_what_would_change_the_numbers_and_is_not_supported_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        load(checkpoint(make_mdlm(), hyper_parameters=hyper_parameters(**changes)), mask_token_id=MASK)


def test_what_is_given_goes_over_what_a_checkpoint_tells_and_a_contradiction_is_said():
    noise = {"type": "linear", "sigma_min": 0.0, "sigma_max": 8.0}
    content = checkpoint(make_mdlm(), hyper_parameters=hyper_parameters(noise=noise, data={}))
    with pytest.warns(UserWarning, match="trained with noise_schedule='linear', and you gave noise_schedule='cosine'"):
        model = load(content, mask_token_id=MASK, noise_schedule="cosine")
    assert (model.schedule.name, model.config.sigma_max) == ("cosine", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(content, mask_token_id=MASK, noise_schedule="linear", sigma_max=8.0, dropout=0.0)


def test_a_checkpoint_goes_over_the_config_beside_it(tmp_path):
    torch.save(checkpoint(make_mdlm(), hyper_parameters=hyper_parameters(data={})), tmp_path / "last.ckpt")
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "model_length": 99, "mask_index": MASK}))
    config = load(tmp_path / "last.ckpt").config
    assert (config.max_position_embeddings, config.mask_token_id) == (24, MASK)


def test_the_number_of_heads_is_never_guessed():
    tensors = make_mdlm().to_published()
    del tensors[FREQUENCIES]
    with pytest.raises(ValueError, match=r"neither rotary frequencies nor settings .* give num_attention_heads"):
        load(tensors, mask_token_id=MASK)
    assert load(tensors, mask_token_id=MASK, num_attention_heads=2).config.num_attention_heads == 2


def test_a_state_dict_of_something_else_is_refused():
    content = checkpoint(make_mdlm())
    content["state_dict"] = OrderedDict(content["state_dict"], **{"backbone.extra": "text"})
    with pytest.raises(ValueError, match=re.escape("must hold tensors, and backbone.extra is not a tensor")):
        load(content, mask_token_id=MASK)
