"""Checkpoints that are cut short or do not fit: the error names the folder, or the tensors and their shapes."""

import copy
import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.model_cases import CASES, ONE_OF_A_CLASS, every_class, every_wrapper_class
from tests.trainer_runs import assert_same, weights


@pytest.fixture(params=ONE_OF_A_CLASS)
def model(request):
    return CASES[request.param].make()


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path, max_shard_size="8KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    return tmp_path


def last_shard(folder):
    return sorted(folder.glob("*.safetensors"))[-1]


def cut_short(folder):
    file = last_shard(folder)
    file.write_bytes(file.read_bytes()[:-10])
    return rf"{re.escape(str(folder))} has a file that is not whole safetensors"


def test_a_tensor_of_another_shape_is_named_with_both_shapes_and_the_folder_of_a_file_cut_short(model, folder):
    file = last_shard(folder)
    tensors = load_file(file)
    name = sorted(tensors)[-1]
    shape = tuple(tensors[name].shape)
    tensors[name] = torch.zeros(3, 5, 7)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=rf"{re.escape(f'{name} is (3, 5, 7), not {shape}')}.*ignore_mismatched_sizes"):
        type(model).from_pretrained(folder)
    again, info = type(model).from_pretrained(folder, ignore_mismatched_sizes=True, output_loading_info=True)
    assert {tensor for tensor, *_ in info["mismatched_keys"]} == {name}
    state, expected = weights(again), weights(model)
    assert state[name].isfinite().all()
    saved = [tensor for file in folder.glob("*.safetensors") for tensor in load_file(file) if tensor != name]
    assert saved and all(torch.equal(state[tensor], expected[tensor]) for tensor in saved)
    with pytest.raises(ValueError, match=cut_short(folder)):
        type(model).from_pretrained(folder)


@every_class
def test_what_does_not_fit_is_named_and_loaded_only_if_it_is_asked_for(case, tmp_path):
    model, file = case.make(), tmp_path / "model.safetensors"
    model.save_pretrained(tmp_path)
    tensors = load_file(file)
    name = next(name for name, parameter in model.named_parameters() if parameter.dim() == 1)  # which is not tied
    save_file({"another" if tensor == name else tensor: value for tensor, value in tensors.items()}, file)
    with pytest.raises(ValueError, match=f"missing: {re.escape(name)}; .*another.*strict=False"):
        case.auto.from_pretrained(tmp_path)
    again, info = case.auto.from_pretrained(tmp_path, strict=False, output_loading_info=True)
    assert name in info["missing_keys"] and info["unexpected_keys"] == {"another"}
    state = weights(again)
    assert all(torch.equal(state[tensor], value) for tensor, value in tensors.items() if tensor != name)


@every_class
def test_weights_that_a_checkpoint_lacks_are_drawn_as_in_a_new_model(case, monkeypatch):
    draw = PreTrainedModel._initialize_weights
    monkeypatch.setattr(PreTrainedModel, "_initialize_weights", lambda *given: torch.manual_seed(0) and draw(*given))
    config, cls = case.make().config, case.model_class
    loaded = cls.from_pretrained(None, config=copy.deepcopy(config), state_dict={}, strict=False)
    assert_same(weights(loaded), weights(cls(config)), rtol=0, atol=0)


@every_wrapper_class
def test_a_model_to_wrap_is_loaded_in_the_place_of_a_checkpoint_only_if_it_is_asked_for(case, tmp_path):
    base = case.wraps()
    base.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="from_base"):
        case.model_class.from_pretrained(tmp_path)
    model, info = case.model_class.from_pretrained(tmp_path, strict=False, output_loading_info=True)
    assert_same(weights(model.backbone), weights(base), rtol=0, atol=0)
    assert info["missing_keys"] == {name for name in weights(model) if name.startswith(f"{model.new_part}.")}


@pytest.mark.parametrize("name", ["lstm-tied", "lstm-untied", "tensorized"])
def test_a_head_is_new_to_a_checkpoint_of_the_model_without_it(name, tmp_path):
    model = CASES[name].make()
    model.base_model.save_pretrained(tmp_path)
    again, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert info["missing_keys"] and all(tensor.startswith("lm_head.") for tensor in info["missing_keys"])
    assert_same(weights(again.base_model), weights(model.base_model), rtol=0, atol=0)


@every_wrapper_class
def test_a_configuration_of_another_size_names_the_first_tensors_and_how_many_more(case, tmp_path):
    case.make().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    width = case.wraps().config.attribute_map.get("hidden_size", "hidden_size")
    config["backbone"][width] = 16
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = r"of another shape: [\w.]+ is \(\d+,( \d+)?\), not \(\d+,( \d+)?\), .* and \d+ more"
    with pytest.raises(ValueError, match=told) as error:
        case.auto.from_pretrained(tmp_path)
    assert len(str(error.value)) < 1000


@every_wrapper_class
def test_a_base_model_cut_short_is_named(case, tmp_path):
    case.wraps().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=cut_short(tmp_path)):
        case.model_class.from_base(tmp_path)
