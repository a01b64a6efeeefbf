import pytest
from torch import nn

from hf_targets.backbones.dropout import in_mode, without_dropout


def test_every_module_is_what_it_was_afterwards_even_after_an_error():
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Dropout())).train()
    model[1][0].eval()
    modes = [module.training for module in model.modules()]
    with pytest.raises(RuntimeError), without_dropout(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [module.training for module in model.modules()] == modes


def test_each_block_has_its_mode_whatever_it_finds():
    model = nn.Dropout().train()
    with without_dropout(model):
        with in_mode(model, training=True):
            assert model.training
            with without_dropout(model):
                assert not model.training
            assert model.training
        assert not model.training
        model.train()
        with without_dropout(model):
            assert not model.training
    assert model.training
