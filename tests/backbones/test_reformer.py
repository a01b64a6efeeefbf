import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from hf_targets import MultiTokenForCausalLM
from hf_targets.backbones.reformer.repair import repair_reformer
from tests.memory import realigned
from tests.programs import run_program
from tests.tiny_backbones import left_padded, make_backbone, pad_rows, token_ids

SHORTENED = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
DROPOUTS = ("hidden_dropout_prob", "lsh_attention_probs_dropout_prob", "local_attention_probs_dropout_prob")
AXIAL = {"axial_pos_embds": True, "axial_pos_shape": (4, 8), "axial_pos_embds_dim": (8, 24)}
LAYERS = (["local"], ["lsh"], ["local", "lsh"], ["lsh", "local", "lsh"])
WEIGHTS = (
    "layers.1.attention.self_attention.value.weight",
    "layers.1.attention.output.dense.weight",
    "layers.0.feed_forward.dense.dense.weight",
    "layers.0.attention.output.dense.weight",
)


def make_reformer(**changes):
    return repair_reformer(make_backbone("reformer", **{"hash_seed": None, **changes}))


def make_wrapped(**changes):
    base = make_backbone("reformer", **{"hash_seed": None, **changes})
    return MultiTokenForCausalLM.from_base(base, ngram_size=3, target="difference")


def loss_of(model, ids, mask=None):
    labels = ids if mask is None else ids.masked_fill(mask == 0, -100)
    logits = model(ids, attention_mask=mask).logits[:, :-1].double()
    return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())


def assert_gradients_are_those_of(model, loss):
    torch.manual_seed(5)
    loss().backward()
    parameters = dict(model.named_parameters())
    for name in WEIGHTS:
        weight = parameters[f"reformer.encoder.{name}"]
        found, values = weight.grad[0, 0].item(), []
        for change in (1e-6, -1e-6):
            with torch.no_grad():
                kept = weight[0, 0].clone()
                weight[0, 0] += change
                torch.manual_seed(5)
                values.append(loss().item())
                weight[0, 0] = kept
        assert found == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-3, abs=1e-6), name


@pytest.mark.parametrize("make", [make_reformer, make_wrapped])
def test_an_evaluation_gives_the_same_logits_again_and_leaves_the_global_generator_alone(make):
    model, ids = make(), token_ids(2, 24)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = model(ids).logits
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(8)
    assert torch.equal(model(ids).logits, first)


def test_another_process_reads_the_same_text_alike(tmp_path):
    model, ids = make_wrapped(num_buckets=None), token_ids(2, 24)
    model.save_pretrained(tmp_path)
    again = realigned(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert torch.equal(again(ids).logits, realigned(model)(ids).logits)
    code = (
        "import torch, hf_targets\nfrom transformers import AutoModelForCausalLM\n"
        f"model, ids = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r}), torch.tensor({ids.tolist()})\n"
        "print(model(ids).logits.double().sum().item())\n"
    )
    done = run_program(code)
    assert float(done.stdout.split()[-1]) == pytest.approx(again(ids).logits.double().sum().item(), rel=1e-6), (
        done.stderr
    )


@pytest.mark.parametrize("length", [5, 8, 13, 24])
def test_with_the_hash_seed_of_a_configuration_logits_are_those_of_transformers(length):
    plain = make_backbone("reformer", hash_seed=3)
    repaired, ids = repair_reformer(copy.deepcopy(plain)), token_ids(2, length)
    assert torch.equal(repaired(ids).logits, plain(ids, use_cache=False).logits)


def test_a_seed_decides_the_hashes_and_dropout_of_training_and_each_step_draws_new_ones():
    ids = token_ids(2, 24)
    for changes in ({}, dict.fromkeys(DROPOUTS, 0.3)):
        model = make_reformer(**changes).train()
        torch.manual_seed(1)
        losses = [loss_of(model, ids).item() for _ in range(3)]
        torch.manual_seed(1)
        assert [loss_of(model, ids).item() for _ in range(3)] == losses
        assert len(set(losses)) == 3


@pytest.mark.parametrize("hash_seed", [None, 0])
def test_gradients_are_those_of_the_loss_after_several_passes_with_dropout_and_padding(hash_seed):
    model = make_reformer(hash_seed=hash_seed, **dict.fromkeys(DROPOUTS, 0.3)).double().train()
    ids = token_ids(2, 24)
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    assert_gradients_are_those_of(model, lambda: loss_of(model, ids, mask) + 2 * loss_of(model, ids[:, :13]))


def test_gradients_are_those_of_the_loss_with_frozen_embeddings_in_evaluation():
    model, ids = make_reformer().double(), token_ids(2, 24)
    model.reformer.embeddings.requires_grad_(False)
    assert_gradients_are_those_of(model, lambda: loss_of(model, ids))


@given(
    layers=st.sampled_from(LAYERS),
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    side=st.sampled_from(["left", "right"]),
    training=st.booleans(),
)
def test_a_row_is_read_as_it_is_alone_at_any_length_with_padding_on_either_side(layers, lengths, side, training):
    model = make_reformer(attn_layers=layers, hash_seed=0).train(training)
    rows = [token_ids(1, length, seed=length)[0] for length in lengths]
    ids, mask = pad_rows(rows, side, 1), pad_rows([torch.ones_like(row) for row in rows], side, 0)
    logits = model(ids, attention_mask=mask).logits
    for row, own, keep in zip(rows, logits, mask.bool(), strict=True):
        torch.testing.assert_close(own[keep], model(row[None]).logits[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layers", LAYERS)
def test_a_text_of_any_length_has_the_loss_in_training_that_it_has_in_evaluation(layers):
    model = make_wrapped(attn_layers=layers, hash_seed=0)
    for length in (3, 8, 11, 16, 29):
        ids = token_ids(2, length)
        loss = model.train()(ids, labels=ids).loss
        loss.backward()
        assert torch.equal(loss, model.eval()(ids, labels=ids).loss)
        assert model.backbone.reformer.encoder.layers[0].attention.output.dense.weight.grad.any()


def test_axial_positions_train_on_texts_of_any_length_up_to_their_grid():
    model, ids = make_reformer(**AXIAL, attn_layers=["local", "local"]), token_ids(2, 13)
    torch.testing.assert_close(model.train()(ids).logits, model.eval()(ids).logits)
    model.train()(ids, labels=ids).loss.backward()
    with pytest.raises(ValueError, match="fills 40 positions"):
        model(token_ids(1, 33))


@pytest.mark.parametrize("kind", ["plain", "wrapped", "ensemble"])
def test_greedy_text_is_that_of_reading_the_whole_text_at_each_step_for_every_row(kind):
    model, options = (make_reformer() if kind == "plain" else make_wrapped()), {}
    if kind == "ensemble":
        options = {"ensemble_weight": 0.3}
    ids, mask = left_padded(4, 13)
    texts = model.generate(ids, attention_mask=mask, **options, **SHORTENED)
    assert torch.equal(model.generate(ids, attention_mask=mask, use_cache=False, **options, **SHORTENED), texts)
    for text, keep in zip(texts, mask.bool(), strict=True):
        row = text[:13][keep][None]
        for _ in range(SHORTENED["max_new_tokens"]):
            row = torch.cat([row, model(row, **options).logits[:, -1:].argmax(-1)], dim=1)
        assert torch.equal(row[0, -6:], text[13:])


@pytest.mark.parametrize("layers", LAYERS)
def test_no_gradient_flows_from_a_logit_to_a_later_token(layers):
    model = make_reformer(attn_layers=layers, hash_seed=0).train()
    embeds = model.get_input_embeddings()(token_ids(1, 27)).detach().requires_grad_()
    for position in (0, 7, 8, 20):
        embeds.grad = None
        model(inputs_embeds=embeds).logits[0, position].square().sum().backward()
        reached = embeds.grad[0].abs().sum(-1) > 0
        assert reached[position] and not reached[position + 1 :].any()


def test_more_hashes_may_be_taken():
    model, ids = make_wrapped(), token_ids(2, 24)
    assert torch.equal(model(ids, num_hashes=1).logits, model(ids).logits)
    assert not torch.equal(model(ids, num_hashes=4).logits, model(ids).logits)
    texts = model.generate(ids, num_hashes=4, **SHORTENED)
    assert torch.equal(texts[:, 24], model(ids, num_hashes=4).logits[:, -1].argmax(-1))


def test_a_missing_number_of_buckets_does_not_depend_on_the_first_text():
    models = [make_reformer(num_buckets=None) for _ in range(2)]
    assert models[0].config.num_buckets == 16
    models[0](token_ids(1, 16))
    assert torch.equal(*(model(token_ids(1, 40)).logits for model in models))


def test_a_repaired_model_is_copied_pickled_and_repaired_again_as_itself():
    model, ids = make_reformer(), token_ids(2, 13)
    expected = model(ids).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), repair_reformer(model)):
        assert torch.equal(realigned(other)(ids).logits, realigned(model)(ids).logits)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.get_output_embeddings().weight.zero_()
        copied.reformer.encoder.layers[1].feed_forward.dense.dense.weight.zero_()
    assert torch.equal(model(ids).logits, expected)
    assert not copied(ids).logits.any()


@pytest.mark.parametrize("given", [{"output_attentions": True}, {"past_buckets_states": object()}])
def test_what_a_reformer_cannot_read_is_refused(given):
    with pytest.raises(ValueError, match=next(iter(given))):
        make_reformer()(token_ids(2, 13), **given)


def test_a_text_that_does_not_fit_once_it_is_padded_is_refused():
    model = make_reformer(max_position_embeddings=20)
    assert model(token_ids(1, 16)).logits.shape == (1, 16, 50)
    with pytest.raises(ValueError, match="fills 24 positions"):
        model(token_ids(1, 17))
