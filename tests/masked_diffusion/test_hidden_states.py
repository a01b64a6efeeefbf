import pytest
import torch

from tests.masked_diffusion.models import CURVES, make_mdlm, masked_batch, masked_ids


@pytest.mark.parametrize("kind", CURVES)
def test_hidden_states_are_what_blocks_read_and_what_the_output_matrix_reads(kind):
    model, canvas = make_mdlm(kind).double(), masked_ids(2, 9)
    with torch.no_grad():
        output = model(canvas, output_hidden_states=True)
        assert len(output.hidden_states) == 4
        assert torch.equal(model(canvas).logits, output.logits)
        reads = []
        handles = [
            block.register_forward_pre_hook(lambda _, given: reads.append(given[0])) for block in model.backbone.blocks
        ]
        model(canvas)
        for handle in handles:
            handle.remove()
    assert all(torch.equal(ours, read) for ours, read in zip(output.hidden_states, reads, strict=False))
    last = model.get_output_embeddings()(output.hidden_states[-1])
    last[..., model.config.mask_token_id] -= 1e6
    masked = canvas == model.config.mask_token_id
    torch.testing.assert_close(last.log_softmax(-1)[masked], output.logits[masked], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", CURVES)
def test_attentions_are_distributions_over_the_positions_that_are_not_padding(kind):
    model, batch = make_mdlm(kind, attn_implementation="eager"), masked_batch()
    batch["attention_mask"] = torch.ones_like(batch["input_ids"])
    batch["attention_mask"][1, 6:] = 0
    output = model(**batch, output_attentions=True)
    assert len(output.attentions) == 3
    for weights in output.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
    if kind == "plain":
        assert output.attentions[0].shape == (3, 4, 9, 9)
        assert (output.attentions[0][1, :, :6, 6:] == 0).all()
