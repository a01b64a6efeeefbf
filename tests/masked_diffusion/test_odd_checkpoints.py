"""Checkpoints that are not what they seem get one error, or a warning, that names them and the way out."""

import re
import sys
import warnings
from functools import partial

import pytest
import torch

from hf_targets.backbones.published import StandIn, read_training_checkpoint
from tests.masked_diffusion.models import MASK, make_mdlm
from tests.masked_diffusion.published_checkpoints import FREQUENCIES, checkpoint, hyper_parameters, save_with_objects
from tests.masked_diffusion.test_published import CONFIG, EMBEDDING, load, same_weights, write
from tests.masked_diffusion.test_published_settings import load as load_as_told

TIME = "backbone.sigma_map.mlp.0.weight"
UNTOLD = {"time_conditioning": False, "noise_schedule": "log_linear"}


def training(**content):
    return checkpoint(make_mdlm(), **{"hyper_parameters": hyper_parameters(data={}), **content})


def saved(content, folder):
    torch.save(content, folder / "last.ckpt")
    return folder / "last.ckpt"


def state(**changes):
    return {**make_mdlm().to_published(), **changes}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"ema": [1.0]}, "`ema` of {} must be a mapping with shadow_params, got a list; "),
        ({"ema": {"shadow_params": 3}}, "the shadow_params of {} must be a list of tensors, got a int; "),
        ({"ema": {"shadow_params": ["a"]}}, "the shadow_params of {} must be a list of tensors, and one is a str; "),
        ({"state_dict": ["a"]}, "the state_dict of {} must be tensors by name, got a list; "),
        ({"state_dict": None}, "the state_dict of {} must be tensors by name, got a NoneType; "),
    ],
)
def test_parts_of_a_training_checkpoint_of_other_kinds_are_refused_by_name(content, says, tmp_path):
    file = saved(training(**content), tmp_path)
    with pytest.raises(ValueError, match=re.escape(says.format(file))):
        load(file)
    with pytest.raises(ValueError, match=re.escape(says.format("the state dict"))):
        load(training(**content))


@pytest.mark.parametrize("name", [EMBEDDING, TIME])
@pytest.mark.parametrize("nested", [True, False])
def test_a_tensor_that_tells_a_size_must_be_a_matrix(name, nested):
    for value, says in (
        ([[1.0]], f"must hold tensors, and {name} is not a tensor"),
        (torch.ones(50), f"{name} of the state dict must have two dimensions, got the shape (50,)"),
        (torch.ones(5, 5, 5), f"{name} of the state dict must have two dimensions, got the shape (5, 5, 5)"),
    ):
        changed = state(**{name: value})
        with pytest.raises(ValueError, match=re.escape(says)):
            load(training(state_dict=changed, ema=None) if nested else changed)


@pytest.mark.parametrize("value", [torch.ones(()), torch.ones(0), torch.ones(2, 2)])
def test_frequencies_must_be_a_vector(value):
    with pytest.raises(ValueError, match=rf"{FREQUENCIES} of the state dict must have one dimension, got the shape"):
        load(state(**{FREQUENCIES: value}))


@pytest.mark.parametrize("prefix", ["module.", "model._orig_mod."])
def test_a_state_dict_with_a_prefix_says_which_and_how_to_strip_it(prefix):
    wrapped = {prefix + name: tensor for name, tensor in state().items()}
    says = f"its names begin with {prefix!r}, as in {prefix}{next(iter(state()))}; take it off: "
    says += f"{{name.removeprefix({prefix!r}): tensor for name, tensor in state_dict.items()}}"
    for source in (wrapped, training(state_dict=wrapped)):
        with pytest.raises(ValueError, match=re.escape(says)):
            load(source)
    assert load({name.removeprefix(prefix): tensor for name, tensor in wrapped.items()})


def test_a_state_dict_of_another_model_says_what_is_there():
    other = {"transformer.wte.weight": torch.ones(5, 4), "lm_head.weight": torch.ones(5, 4)}
    for source in (other, training(state_dict=other)):
        with pytest.raises(ValueError, match=rf"it has no {EMBEDDING} but transformer.wte.weight, lm_head.weight ..."):
            load(source)
    with pytest.raises(ValueError, match=rf"it has no {EMBEDDING} but nothing"):
        load({})


@pytest.mark.parametrize(
    ("theirs", "ours", "value", "kind"),
    [
        ("n_heads", "num_attention_heads", "2", "a whole number"),
        ("n_heads", "num_attention_heads", True, "a whole number"),
        ("model_length", "max_position_embeddings", 24.0, "a whole number"),
        ("mask_index", "mask_token_id", "49", "a whole number"),
        ("dropout", "dropout", "0.1", "a number"),
        ("time_conditioning", "time_conditioning", "False", "true or false"),
    ],
)
def test_a_setting_of_another_kind_is_refused_unless_another_is_given(theirs, ours, value, kind, tmp_path):
    write(tmp_path, state(), {**CONFIG, "mask_index": MASK, theirs: value})
    with pytest.raises(
        ValueError, match=re.escape(f"{tmp_path} says {ours}={value!r}, which must be {kind}; give {ours}=")
    ):
        load_as_told(tmp_path)
    given = getattr(make_mdlm().config, ours)
    with pytest.warns(UserWarning) if ours != "dropout" else warnings.catch_warnings():
        assert getattr(load_as_told(tmp_path, **{ours: given}).config, ours) == given


@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({"model": {"n_heads": "4"}}, "num_attention_heads='4'"),
        ({"T": "1000"}, "num_diffusion_steps='1000'"),
        ({"noise": {"type": "linear", "sigma_min": "1e-4", "sigma_max": 20}}, "sigma_min='1e-4'"),
        ({"time_conditioning": "no"}, "time_conditioning='no'"),
    ],
)
def test_a_training_setting_of_another_kind_is_refused(changes, ours):
    with pytest.raises(ValueError, match=f"the state dict says {ours}, which must be"):
        load(training(hyper_parameters=hyper_parameters(data={}, **changes)))


def test_a_mask_that_is_given_as_none_does_not_hide_the_one_that_is_told(tmp_path):
    write(tmp_path, state(), {**CONFIG, "mask_index": 5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_as_told(tmp_path, mask_token_id=None).config.mask_token_id == 5


def test_a_training_checkpoint_without_settings_says_what_is_taken_and_what_to_give(tmp_path):
    silent = training()
    del silent["hyper_parameters"]
    for content in (silent, training(hyper_parameters=None), training(hyper_parameters={})):
        file = saved(content, tmp_path)
        says = f"{file} does not say with which time_conditioning and noise_schedule it was trained; "
        says += "time_conditioning=False and noise_schedule='log_linear' are used, which may be wrong; give "
        with pytest.warns(UserWarning, match=re.escape(says)):
            assert same_weights(load(file), make_mdlm())
        with pytest.warns(UserWarning, match="; time_conditioning=False is used, which may be wrong; give time_"):
            load(file, noise_schedule="cosine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(silent, **UNTOLD)
        load(training())
        load(state())
        write(tmp_path, {}, {**CONFIG, "noise": "cosine"})
        assert load(saved(silent, tmp_path)).config.noise_schedule == "cosine"


@pytest.mark.parametrize("ema", [None, {}, {"shadow_params": None}])
def test_a_training_checkpoint_without_averaged_weights_says_that_raw_ones_are_taken(ema, tmp_path):
    raw = partial(load, saved(training(ema=ema), tmp_path))
    says = f"{tmp_path / 'last.ckpt'} has no averaged weights (`ema`); its raw weights are used, which are worse; give "
    with pytest.warns(UserWarning, match=re.escape(says)):
        assert same_weights(raw(), make_mdlm(seed=1))


def test_a_config_says_noise_as_training_settings_do(tmp_path):
    for noise, name in (
        ("cosine", "cosine"),
        ({"type": "geometric", "sigma_max": 9.0}, "geometric"),
        (None, "log_linear"),
    ):
        write(tmp_path, state(), {**CONFIG, "noise": noise})
        model = load(tmp_path)
        assert (model.schedule.name, model.config.sigma_max) == (name, 9.0 if name == "geometric" else None)
        if noise:
            told = load(training(hyper_parameters=hyper_parameters(data={}, noise=noise))).config
            assert (told.noise_schedule, told.sigma_max) == (name, model.config.sigma_max)


def test_training_settings_of_noise_take_the_place_of_a_config_s_as_a_whole(tmp_path):
    write(tmp_path, {}, {**CONFIG, "noise": {"type": "linear", "sigma_min": 1e-3, "sigma_max": 9.0}})
    config = load(saved(training(), tmp_path)).config
    assert (config.noise_schedule, config.sigma_min, config.sigma_max) == ("log_linear", None, None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"noise": "cubic"}, "was trained with the noise 'cubic', known are loglinear"),
        ({"noise": {"type": 3}}, "was trained with the noise 3, known are loglinear"),
        ({"noise": {"type": ["cosine"]}}, "was trained with the noise ['cosine'], known are loglinear"),
        ({"noise": ["cosine"]}, "was trained with the noise ['cosine'], known are loglinear"),
        ({"parameterization": "d3pm"}, "was trained with parameterization='d3pm', and only 'subs' can be read"),
        ({"parameterization": ["d3pm"]}, "was trained with parameterization=['d3pm'], and only 'subs' can be read"),
        ({"backbone": "ar"}, "was trained with backbone='ar', and only 'dit' and 'hf_dit' can be read"),
    ],
)
def test_a_config_of_what_is_not_supported_is_refused_as_training_settings_are(changes, says, tmp_path):
    write(tmp_path, state(), {**CONFIG, **changes})
    with pytest.raises(ValueError, match=re.escape(f"{tmp_path} {says}")):
        load(tmp_path)
    with pytest.raises(ValueError, match=re.escape(f"the state dict {says}")):
        load(training(hyper_parameters=hyper_parameters(**changes)))


def test_tensors_are_read_beside_objects_of_classes_that_are_not_there(tmp_path):
    model = make_mdlm()
    file = save_with_objects(checkpoint(model, hyper_parameters=hyper_parameters()), tmp_path / "last.ckpt")
    content = read_training_checkpoint(file)
    assert content["global_step"] == 7
    for name, tensor in make_mdlm(seed=1).to_published().items():
        assert torch.equal(content["state_dict"][name], tensor)
    config = content["hyper_parameters"]["config"]
    assert isinstance(config, StandIn) and type(config).__name__ == "DictConfig"
    assert config.state["_content"]["T"].state["_val"] == 0
    assert not any(name.startswith("absent_") for name in sys.modules)
