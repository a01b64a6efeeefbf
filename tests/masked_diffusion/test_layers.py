import torch

from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.masked_diffusion.layers import DitBlock, layer_norm, rotary_frequencies, rotary_table
from tests.masked_diffusion import reference

CPU = torch.device("cpu")
SMALL = {"vocab_size": 20, "hidden_size": 16, "num_attention_heads": 2, "cond_dim": 6, "num_hidden_layers": 1}


def config(**fields):
    made = MdlmConfig(**{**SMALL, **fields})
    made._attn_implementation = "eager"
    return made


def test_normalisation_of_half_precision_is_computed_in_float32_and_rounded_once():
    norm, rows = layer_norm(config()), torch.randn(4, 16).bfloat16()
    torch.nn.init.normal_(norm.weight)
    expected = reference.norm(rows.double(), norm.weight.double()).bfloat16()
    torch.testing.assert_close(norm(rows), expected, rtol=2**-8, atol=0)
    assert norm(rows).dtype == torch.bfloat16


def test_rotary_frequencies_are_the_published_bits():
    published = 1.0 / (10_000 ** (torch.arange(0, 64, 2).float() / 64))
    assert torch.equal(rotary_frequencies(64), published)
    cosines, sines = rotary_table(5, 64, torch.bfloat16, CPU)
    angles = torch.outer(torch.arange(5).float(), published)
    assert torch.equal(cosines, angles.cos().repeat(1, 2))
    assert torch.equal(sines, angles.sin().repeat(1, 2))
    assert rotary_table(5, 64, torch.float64, CPU)[0].dtype == torch.float64


def test_dropout_falls_on_attention_and_on_the_mlp_in_training_alone():
    block = DitBlock(config(dropout=0.5))
    torch.nn.init.zeros_(block.mlp[2].weight)
    torch.nn.init.ones_(block.mlp[2].bias)
    torch.nn.init.zeros_(block.attn_out.weight)
    condition = torch.ones(1, 1, 6)
    torch.nn.init.zeros_(block.adaLN_modulation.weight)
    torch.nn.init.ones_(block.adaLN_modulation.bias)  # all gates are 1
    rotary, hidden = rotary_table(9, 8, torch.float32, CPU), torch.zeros(1, 9, 16)
    assert torch.equal(block.eval()(hidden, condition, rotary, None), torch.ones(1, 9, 16))
    assert set(block.train()(hidden, condition, rotary, None).unique().tolist()) == {0.0, 2.0}
    torch.nn.init.zeros_(block.mlp[2].bias)
    torch.nn.init.eye_(block.attn_out.weight)
    block._attend = lambda *_, **__: torch.ones(1, 9, 16)
    assert set(block(hidden, condition, rotary, None).unique().tolist()) == {0.0, 2.0}
    assert torch.equal(block.eval()(hidden, condition, rotary, None), torch.ones(1, 9, 16))
