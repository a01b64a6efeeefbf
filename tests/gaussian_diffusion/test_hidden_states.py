"""Hidden states and attention weights as outputs, against the layers that make them."""

import pytest
import torch

from tests.gaussian_diffusion.models import KINDS, make_difformer, noisy_pairs

every_kind = pytest.mark.parametrize("kind", KINDS)
ALL = {"output_hidden_states": True, "output_attentions": True}


def eager(kind):
    model = make_difformer(kind, self_conditioning="both")
    model.set_attn_implementation("eager")
    return model, noisy_pairs(model)


@every_kind
def test_states_are_what_the_layers_read_and_weights_what_they_attend_with(kind):
    model, batch = eager(kind)
    read, attended = [], []
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            layer.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
            layer.self_attn.register_forward_hook(lambda *call: attended.append(call[-1][1]))
    plain = model(**batch)
    read.clear()
    attended.clear()
    output = model(**batch, **ALL)
    assert torch.equal(output.loss, plain.loss) and torch.equal(output.logits, plain.logits)
    assert len(output.encoder_hidden_states) == len(output.decoder_hidden_states) == 3
    # the decoder runs twice, and its last pass counts
    for found, expected in ((output.encoder_hidden_states, read[:2]), (output.decoder_hidden_states, read[-2:])):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=False))
    for found, expected in ((output.encoder_attentions, attended[:2]), (output.decoder_attentions, attended[-2:])):
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert torch.equal(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)
    projected = model.decoder.project_out_dim(output.decoder_hidden_states[-1])
    if model.config.projection == "linear":  # which a curve's matrix may follow or precede
        torch.testing.assert_close(projected, output.predicted_embeddings, rtol=1e-4, atol=1e-5)
    rows, positions = output.decoder_hidden_states[0].shape[:2]
    assert [tuple(one.shape) for one in output.cross_attentions] == [(rows, 4, positions, 7)] * 2
    for weights_ in (*output.encoder_attentions, *output.decoder_attentions, *output.cross_attentions):
        torch.testing.assert_close(weights_.sum(dim=-1), torch.ones(weights_.shape[:-1]))
    source = batch["attention_mask"].repeat_interleave(rows // 3, dim=0)
    assert not output.cross_attentions[0].masked_select(source[:, None, None] == 0).any()
