"""New models begin as those of the published programs: the deviations of their tensors, by fairseq's and torch's rules.

fairseq: learnt positions width^-.5; attention xavier with gain 2^-.5, its output xavier; other matrices uniform within
width^-.5, so of deviation (3 width)^-.5. `--apply-bert-init` draws the decoder, and the embeddings that it shares, with
deviation .02. torch: embeddings 1, queries, keys and values together xavier, other matrices as fairseq's.
"""

import pytest
import torch

from hf_targets import DifformerConfig, DifformerForConditionalGeneration
from tests.gaussian_diffusion.models import make_difformer

SIZE, WIDE, LATENT = 64, 128, 16
DIFFORMER = {
    "embed_tokens.weight": 0.02,
    "encoder.project_in_dim.weight": (3 * LATENT) ** -0.5,
    "encoder.embed_positions.weight": SIZE**-0.5,
    "encoder.layers.1.self_attn.q_proj.weight": (2 * SIZE) ** -0.5,
    "encoder.layers.1.self_attn.q_proj.bias": (3 * SIZE) ** -0.5,
    "encoder.layers.1.self_attn.out_proj.weight": SIZE**-0.5,
    "encoder.layers.1.self_attn.out_proj.bias": 0.0,
    "encoder.layers.0.fc1.weight": (3 * SIZE) ** -0.5,
    "encoder.layers.0.fc2.weight": (3 * WIDE) ** -0.5,
    "decoder.embed_positions.weight": 0.02,
    "decoder.layers.1.encoder_attn.v_proj.weight": 0.02,
    "decoder.layers.1.fc2.weight": 0.02,
    "decoder.layers.1.fc2.bias": 0.0,
    "decoder.project_out_dim.weight": 0.02,
    "lengths.embed_length.weight": 0.02,
    "heads.layers.0.inner.weight": 0.02,
}
DINOISER = {
    "embed_tokens.weight": 0.001,
    "encoder.embed_tokens.weight": 1.0,
    "encoder.embed_positions.weight": 1.0,
    "decoder.embed_positions.weight": 1.0,
    "encoder.layers.1.self_attn.q_proj.weight": (2 * SIZE) ** -0.5,
    "encoder.layers.1.self_attn.q_proj.bias": 0.0,
    "decoder.layers.1.encoder_attn.out_proj.weight": (3 * SIZE) ** -0.5,
    "decoder.layers.1.encoder_attn.out_proj.bias": 0.0,
    "decoder.layers.0.fc2.weight": (3 * WIDE) ** -0.5,
    "decoder.read.0.weight": (3 * 2 * LATENT) ** -0.5,
    "encoder.layer_norm.bias": 0.0,
    "decoder.project_out_dim.2.weight": (3 * 2 * SIZE) ** -0.5,
    "lengths.embed_length.2.weight": (3 * SIZE) ** -0.5,
    "heads.layers.0.inner.weight": 0.02,
}


@pytest.mark.parametrize(("preset", "expected"), [("difformer", DIFFORMER), ("dinoiser", DINOISER)])
def test_new_weights_have_the_deviations_of_the_published_program(preset, expected):
    torch.manual_seed(0)
    sizes = {"vocab_size": 500, "hidden_size": SIZE, "intermediate_size": WIDE, "latent_size": LATENT}
    own = {"source_vocab_size": 300} if preset == "dinoiser" else {}
    config = DifformerConfig(preset=preset, num_hidden_layers=2, multitoken={}, **sizes, **own)
    weights = dict(DifformerForConditionalGeneration(config).named_parameters())
    for name, deviation in expected.items():
        found = weights[name].std().item() if deviation else weights[name].abs().max().item()
        tolerance = 0.2 if name.endswith("bias") else 0.06  # of as many numbers
        assert found == pytest.approx(deviation, rel=tolerance), name


def test_a_new_medusa_head_is_the_identity():
    head = make_difformer(multitoken={"head": "medusa"}).heads.layers[0]
    hidden = torch.randn(2, 3, 32)
    assert torch.equal(head(hidden), hidden)


@pytest.mark.parametrize("fields", [{"latent_deviation": 0.5}, {"latent_deviation": 0.5, "initializer_range": 0.1}])
def test_z_0_has_the_deviation_that_is_asked_for(fields):
    torch.manual_seed(0)
    config = DifformerConfig(vocab_size=500, hidden_size=SIZE, num_hidden_layers=1, latent_size=LATENT, **fields)
    model = DifformerForConditionalGeneration(config)
    assert model.embedded(torch.arange(500)[None]).std().item() == pytest.approx(0.5, rel=0.03)
    expected = fields.get("initializer_range", (3 * SIZE) ** -0.5)
    assert model.encoder.layers[0].fc1.weight.std().item() == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("preset", "share"), [("difformer", 0.0), ("dinoiser", 0.1)])
def test_torch_layers_drop_attention_weights_and_activations_too(preset, share):
    config = DifformerConfig(preset=preset, dropout=0.1)
    assert (config.attention_dropout, config.activation_dropout) == (share, share)
    layer = DifformerForConditionalGeneration(
        DifformerConfig(preset=preset, dropout=0.1, hidden_size=16, num_hidden_layers=1, vocab_size=50)
    ).decoder.layers[0]
    assert (layer.self_attn.dropout, layer.encoder_attn.dropout, layer.activation_dropout) == (share,) * 3
