import warnings

import pytest
import torch

from hf_targets import MdlmConfig, MdlmForMaskedDiffusion, train_bpe_tokenizer
from hf_targets.masked_diffusion.published import settings_of_training
from tests.masked_diffusion.models import MASK, VOCAB, make_mdlm, masked_ids
from tests.masked_diffusion.published_checkpoints import FREQUENCIES, checkpoint, hyper_parameters, save_with_objects
from tests.masked_diffusion.test_published import CONFIG, same_weights, write
from tests.memory import realigned

load = MdlmForMaskedDiffusion.from_published


def test_the_mask_is_never_guessed(tmp_path):
    tensors = make_mdlm().to_published()
    with pytest.raises(ValueError, match=f"which of its {VOCAB} tokens is the mask"):
        load(tensors)
    for number, told in enumerate(({"mask_token_id": 5}, {"mask_index": 5})):
        (tmp_path / str(number)).mkdir()
        folder = write(tmp_path / str(number), tensors, {**CONFIG, **told})
        assert load(folder).config.mask_token_id == load(folder, mask_token_id=None).config.mask_token_id == 5
    assert load(tensors, mask_token_id=7).config.mask_token_id == 7


def test_the_mask_is_that_of_the_tokenizer_that_the_checkpoint_names():
    named, other = (hyper_parameters(data={"tokenizer_name_or_path": x}) for x in ("bert-base-uncased", "text8"))
    tokenizer = train_bpe_tokenizer(["the cat\n"] * 9, vocab_size=264)
    told = (named, hyper_parameters(), other, {**other, "tokenizer": tokenizer})
    found = [settings_of_training(one, "it").get("mask_token_id") for one in told]
    assert found == [103, 50257, None, len(tokenizer)]
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    assert settings_of_training({**other, "tokenizer": tokenizer}, "it")["mask_token_id"] == len(tokenizer) - 1
    referring = settings_of_training(hyper_parameters(model={"length": "${block_size}", "n_heads": 4}), "it")
    assert "max_position_embeddings" not in referring and referring["num_attention_heads"] == 4


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("objects", [True, False])
def test_a_training_checkpoint_is_read_with_its_averaged_weights_and_its_settings(nested, objects, tmp_path):
    model = make_mdlm(time_conditioning=True, noise_schedule="cosine", num_attention_heads=2)
    noise = {"type": "cosine", "sigma_min": 1e-3, "sigma_max": 9.0}
    sizes = {"length": 24, "n_heads": 2, "dropout": 0.25}
    hyper = hyper_parameters(time_conditioning=True, noise=noise, model=sizes, T=50)
    content = checkpoint(model, hyper_parameters=hyper if nested or objects else hyper["config"])
    del content["state_dict"][FREQUENCIES]
    file = tmp_path / "last.ckpt"
    save_with_objects(content, file) if objects else torch.save(content, file)
    again = realigned(load(file, mask_token_id=MASK))
    assert same_weights(model, again)
    config = again.config
    assert (config.max_position_embeddings, config.dropout, config.num_attention_heads) == (24, 0.25, 2)
    assert (config.noise_schedule, config.time_conditioning) == ("cosine", True)
    canvas, times = masked_ids(2, 9), torch.tensor([0.2, 0.9])
    assert torch.equal(again(canvas, timesteps=times).logits, model(canvas, timesteps=times).logits)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("loglinear", "log_linear"), ("cosine", "cosine"), ("cosinesqr", "cosine_squared")]
)
def test_noise_is_that_of_the_published_program(theirs, ours):
    told = settings_of_training(hyper_parameters(noise={"type": theirs, "sigma_min": 0.01}), "it")
    assert told["noise_schedule"] == ours
    schedule = MdlmForMaskedDiffusion(MdlmConfig(**{**told, "vocab_size": 50258, "hidden_size": 8})).schedule
    t = torch.linspace(0.01, 1, 20, dtype=torch.float64)
    cosine = torch.cos(t * torch.pi / 2)
    sigma = {
        "loglinear": -torch.log1p(-(1 - 1e-3) * t),
        "cosine": -torch.log(1e-3 + (1 - 1e-3) * cosine),
        "cosinesqr": -torch.log(1e-3 + (1 - 1e-3) * cosine**2),
    }[theirs]
    torch.testing.assert_close(schedule.sigma(t), sigma, rtol=1e-9, atol=1e-12)


def training(**content):
    return checkpoint(make_mdlm(), **{"hyper_parameters": hyper_parameters(data={}), **content})


def load_training(content, **config):
    return load(content, mask_token_id=MASK, **config)


@pytest.mark.parametrize("ema", [None, {}])
def test_without_averaged_weights_raw_ones_are_taken_with_a_warning(ema):
    assert same_weights(make_mdlm(), load_training(training()))
    with pytest.warns(UserWarning, match="no averaged weights"):
        assert same_weights(make_mdlm(seed=1), load_training(training(ema=ema)))


def test_averaged_weights_that_do_not_fit_are_refused():
    content = training()
    shadow = content["ema"]["shadow_params"]
    shadow[0], shadow[1] = shadow[1], shadow[0]
    with pytest.raises(ValueError, match="order"):
        load_training(content)


def test_a_training_checkpoint_without_settings_says_what_is_taken():
    silent = training(hyper_parameters=None)
    with pytest.warns(UserWarning, match="log_linear"):
        assert same_weights(load_training(silent), make_mdlm())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_training(silent, time_conditioning=False, noise_schedule="log_linear")
        load_training(training())


def test_a_config_says_noise_as_training_settings_do_and_these_and_what_is_given_take_its_place(tmp_path):
    noise = {"type": "cosine"}
    folder = write(tmp_path, make_mdlm().to_published(), {**CONFIG, "noise": noise})
    assert load_training(folder).config.noise_schedule == "cosine"
    told = training(hyper_parameters=hyper_parameters(data={}, noise=noise))
    assert load_training(told).config.noise_schedule == "cosine"
    assert load_training(told, noise_schedule="log_linear").config.noise_schedule == "log_linear"
    torch.save(training(), tmp_path / "last.ckpt")
    assert load_training(tmp_path / "last.ckpt").config.noise_schedule == "log_linear"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"noise": {"type": "geometric"}}, "geometric"),
        ({"parameterization": "d3pm"}, "d3pm"),
        ({"training": {"change_of_variables": True}, "time_conditioning": True}, "sigma"),
    ],
)
def test_what_would_change_the_numbers_and_is_not_supported_is_refused(changes, word):
    with pytest.raises(ValueError, match=word):
        load_training(training(hyper_parameters=hyper_parameters(**changes)))
