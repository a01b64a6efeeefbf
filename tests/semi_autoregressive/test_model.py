"""Predicted blocks against the LSTM, the curve and the targets, each written out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from hf_targets import CurveConfig, SemiAutoregressiveForCausalLM
from hf_targets.backbones.alignment import next_targets, steps_into_sequence
from hf_targets.maths.bsplines import basis_matrix
from hf_targets.maths.losses import IGNORED
from hf_targets.semi_autoregressive.model import block_targets
from tests.semi_autoregressive.models import KINDS, PUBLISHED_CURVES, make_block_model, with_identity_curve
from tests.tiny_backbones import make_backbone, token_ids
from tests.tiny_seq2seq import make_pair_backbone

kinds = pytest.mark.parametrize("kind", KINDS)


def lstm_by_hand(lstm, inputs, state):
    """Return the outputs of an LSTM for one row of inputs (steps, d), whose first state is given and cell is 0."""
    cell, outputs = torch.zeros_like(state), []
    for step in inputs:
        gates = lstm.weight_ih_l0 @ step + lstm.bias_ih_l0 + lstm.weight_hh_l0 @ state + lstm.bias_hh_l0
        keep_in, forget, new, show = gates.chunk(4)
        cell = forget.sigmoid() * cell + keep_in.sigmoid() * new.tanh()
        state = show.sigmoid() * cell.tanh()
        outputs.append(state)
    return torch.stack(outputs)


def block_by_hand(model, hidden):
    """Return the logits (N, vocab) of the block of one hidden state (d), as appendix B.3 and section 4.2 say."""
    decoder, curve = model.block_decoder, model.config.curve
    if curve is None or curve.num_curves == 1:
        states = lstm_by_hand(decoder.lstm, decoder.steps, hidden)
    else:
        copies, mixture = [], decoder.curves
        for token in mixture.tokens:
            copies.append(lstm_by_hand(decoder.lstm, torch.cat([token[None], decoder.steps]), hidden))
        scores = torch.cat([mixture.scorer(copy[0]) for copy in copies]).softmax(dim=0)
        if model.training:
            states = sum(score * copy[1:] for score, copy in zip(scores, copies, strict=True))
        else:
            states = copies[int(scores.argmax())][1:]
    if curve is not None:
        basis = basis_matrix(model.config.ngram_size, curve.num_control_points, curve.degree, margin=curve.margin)
        states = basis.T.to(states) @ states
    words = decoder.project_out(states + hidden)
    return model.get_output_embeddings()(words + hidden if model.config.residual else words)


@kinds
@pytest.mark.parametrize("training", [False, True])
def test_a_block_is_what_the_lstm_and_the_curve_give(kind, training):
    model, ids = make_block_model(kind).double().train(training), token_ids(2, 6)
    hidden = model.base_model(ids)[0]
    found = model(ids, output_block_logits=True)
    for row in range(2):
        for position in range(6):
            expected = block_by_hand(model, hidden[row, position])
            torch.testing.assert_close(found.block_logits[row, position], expected)
            torch.testing.assert_close(found.logits[row, position], expected[0])
            torch.testing.assert_close(model.block_logits(hidden)[row, position], expected)
            torch.testing.assert_close(model.block_logits(hidden[row, position]), expected)


@kinds
def test_a_new_decoder_on_a_trained_base_repeats_its_prediction_unless_it_is_as_the_papers(kind, tmp_path):
    make_backbone("llama").save_pretrained(tmp_path)
    settings = {name: value for name, value in KINDS[kind].items() if name != "residual"}
    model, ids = SemiAutoregressiveForCausalLM.from_base(tmp_path, **settings).eval(), token_ids(2, 9)
    base, found = model.backbone(ids, labels=ids), model(ids, labels=ids, output_block_logits=True)
    torch.testing.assert_close(found.loss_parts["word_1"], base.loss)
    for n in range(3):
        assert torch.equal(found.block_logits[:, :, n], base.logits)
    told = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(model.generate(ids, **told), model.backbone.generate(ids, **told))
    model.train()(ids, labels=ids).loss.backward()
    assert model.block_decoder.project_out.weight.grad.any()
    plain = SemiAutoregressiveForCausalLM.from_base(tmp_path, residual=False, **settings).eval()
    assert not torch.allclose(plain(ids).logits, base.logits, atol=0.1)
    assert not SemiAutoregressiveForCausalLM.from_base(make_backbone("llama"), ngram_size=3).config.residual


@kinds
def test_fewer_words_are_the_first_of_all(kind):
    decoder, hidden = make_block_model(kind).double().block_decoder, torch.randn(4, 32).double()
    whole = decoder(hidden)[0]
    for count in (1, 2, 3):
        torch.testing.assert_close(decoder(hidden, count)[0], whole[:, :count])
    assert decoder(hidden[:0])[0].shape == (0, 3, 32)


def test_words_do_not_depend_on_each_other_and_with_a_curve_they_do():
    for kind, depends in (("words", False), ("curve", True)):
        model, hidden = make_block_model(kind), torch.randn(1, 32)
        before = model.block_logits(hidden)[0]
        with torch.no_grad():
            model.block_decoder.steps[1] += 1  # what the second step reads
        after = model.block_logits(hidden)[0]
        assert not torch.equal(after[-1], before[-1])
        assert torch.equal(after[0], before[0]) is not depends


@kinds
@pytest.mark.parametrize(("given", "cap"), [("labels", None), ("shift_labels", 1.5)])
def test_the_loss_is_the_mean_over_words_of_their_cross_entropies(kind, given, cap):
    model, ids = make_block_model(kind).double(), token_ids(2, 9)
    model.backbone.config.final_logit_softcapping = cap  # as of a Gemma 2
    labels = ids.clone()
    labels[0, 3], labels[1, 6:] = IGNORED, IGNORED
    shifted = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    output = model(ids, output_block_logits=True, **{given: labels if given == "labels" else shifted})
    assert cap is None or 1 < output.block_logits.abs().max() < cap
    count, parts = int((labels[:, 1:] != IGNORED).sum()), []
    for n in (1, 2, 3):
        nlls = torch.zeros(2, dtype=torch.float64)
        for row in range(2):
            for position in range(9 - n):
                if labels[row, position + n] != IGNORED:
                    nlls[row] += cross_entropy(output.block_logits[row, position, n - 1], labels[row, position + n])
        torch.testing.assert_close(output.word_nlls[:, n - 1], nlls)
        parts.append(nlls.sum() / count)
        torch.testing.assert_close(output.loss_parts[f"word_{n}"], parts[-1])
    torch.testing.assert_close(output.loss, sum(parts) / 3)
    assert output.word_counts.tolist() == [
        [int((labels[row, n:] != IGNORED).sum()) for n in (1, 2, 3)] for row in range(2)
    ]


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    padding=st.integers(0, 3),
    side=st.sampled_from(("left", "right")),
    num_words=st.integers(2, 5),
)
def test_no_target_comes_from_padding_or_from_another_document(lengths, padding, side, num_words):
    ids, document, positions = [], [], []
    for number, length in enumerate(lengths):
        ids += range(10 * number + 1, 10 * number + 1 + length)
        document += [number] * length
        positions += range(length)
    pad = [0] * padding
    ids, document, positions, mask = (
        torch.tensor([[*fill, *row] if side == "left" else [*row, *fill]])
        for row, fill in ((ids, pad), (document, [-1] * padding), (positions, pad), ([1] * len(ids), pad))
    )
    steps = steps_into_sequence(1, ids.shape[1], mask, positions, ids.device)
    found = block_targets(next_targets(ids, mask, positions), steps, num_words)
    for position in range(ids.shape[1]):
        for n in range(1, num_words + 1):
            there = position + n
            same = there < ids.shape[1] and document[0, there] == document[0, position] != -1
            assert found[0, position, n - 1] == (ids[0, there] if same else IGNORED)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neo", "llama"])
def test_a_curve_of_identity_maps_changes_nothing(family):
    words, ids = make_block_model("words", family), token_ids(2, 12)
    curve = with_identity_curve(words)
    one, other = words(ids, labels=ids), curve(ids, labels=ids)
    assert torch.equal(one.loss, other.loss) and torch.equal(one.logits, other.logits)


@pytest.mark.parametrize("ngram_size", PUBLISHED_CURVES)
def test_the_published_curves_are_built_and_learn(ngram_size):
    model = SemiAutoregressiveForCausalLM.from_base(
        make_backbone("gpt2"), ngram_size=ngram_size, curve=PUBLISHED_CURVES[ngram_size]
    ).train()
    ids = token_ids(2, 12)
    output = model(ids, labels=ids)
    output.loss.backward()
    assert output.curve_probabilities.shape == (24, PUBLISHED_CURVES[ngram_size]["num_curves"])
    assert all(parameter.grad.any() for parameter in model.block_decoder.parameters())


@kinds
def test_mixed_precision_is_near_to_full_precision(kind):
    model, ids = make_block_model(kind), token_ids(2, 12)
    full = model(ids, labels=ids)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(ids, labels=ids)
    torch.testing.assert_close(mixed.loss, full.loss, rtol=0.02, atol=0)
    half = model.to(torch.bfloat16)(ids, labels=ids)
    assert half.logits.dtype == torch.bfloat16
    torch.testing.assert_close(half.loss, full.loss, rtol=0.05, atol=0)


def test_the_next_word_is_read_from_embeddings_and_segments_too():
    model, ids = make_block_model("curve").double(), token_ids(2, 8)
    embeds, segments = model.get_input_embeddings()(ids), torch.arange(8).expand(2, 8) // 4
    torch.testing.assert_close(model(inputs_embeds=embeds).logits, model(ids).logits)
    hidden = model.base_model(ids, token_type_ids=segments)[0]
    expected = model.block_logits(hidden.flatten(0, 1))[:, 0].view(2, 8, -1)
    torch.testing.assert_close(model(ids, token_type_ids=segments).logits, expected)
    assert not torch.allclose(expected, model(ids).logits)


def test_a_curve_that_is_changed_later_is_no_field_of_a_model_made_before():
    curve = CurveConfig(num_control_points=9, degree=2)
    model = SemiAutoregressiveForCausalLM.from_base(make_backbone("gpt2"), curve=curve)
    curve.degree = 5
    assert model.config.curve.degree == model.block_decoder.curve.config.degree == 2


def test_a_base_that_cannot_be_wrapped_is_refused():
    with pytest.raises(ValueError, match="backbone"):
        SemiAutoregressiveForCausalLM.from_base(make_block_model())
    with pytest.raises(ValueError, match="encoder"):
        SemiAutoregressiveForCausalLM.from_base(make_pair_backbone("bart"))


@kinds
def test_the_block_decoder_is_exported_for_any_number_of_rows(kind):
    decoder = make_block_model(kind=kind).eval().block_decoder
    anything = {"hidden": {0: torch.export.Dim.DYNAMIC}, "count": None}
    with torch.no_grad():
        exported = torch.export.export(decoder, (torch.randn(6, 32), 1), dynamic_shapes=anything, strict=False)
        hidden = torch.randn(9, 32)
        torch.testing.assert_close(exported.module()(hidden, 1)[0], decoder(hidden, 1)[0])
