import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_targets.maths.losses import IGNORED
from tests.tiny_models import VOCAB, make_dynamic_model, make_vocabulary, phrase_batch, phrase_ids, token_ids

near = {"rtol": 1e-4, "atol": 1e-4}
KINDS = {
    "in_batch": {"negatives": None},
    "own_rows": {},
    "few": {"phrase_rate": 0.2},
    "none": {"phrase_rate": 0.0},
}


def by_hand(model, batch):
    """L_p, L_t and L_kl of each row in float64, one position after the other, from whole distributions."""
    config = model.config
    layer = model.get_output_embeddings()
    weight = layer.weight.double()
    bias = 0.0 if layer.bias is None else layer.bias.double()
    matrix = model.get_input_embeddings()(torch.arange(VOCAB))
    phrases = [tuple(batch["windows"][w, :n].tolist()) for w, n in batch["phrase_windows"].tolist()]
    embedded = [model.phrase_encoder(torch.tensor([p]), torch.tensor([[0, len(p)]])) for p in phrases]
    rows = []
    for row in range(len(batch["input_ids"])):
        ids = batch["input_ids"][row][batch["attention_mask"][row] == 1]
        hidden = model.backbone.base_model(input_ids=ids[None])[0][0].double()
        teacher = (hidden @ weight.T + bias).log_softmax(-1)
        token = -sum(teacher[t, ids[t + 1]] for t in range(len(ids) - 1))

        positions = batch["phrase_input_ids"][row][batch["phrase_attention_mask"][row] == 1].tolist()
        inputs = [matrix[id_] if id_ < VOCAB else embedded[id_ - VOCAB][0][0] for id_ in positions]
        hidden = model.backbone.base_model(inputs_embeds=torch.stack(inputs)[None])[0][0].double()
        phrase = kl = 0.0
        tokens_a_step = (len(ids) - 1) / (len(positions) - 1)
        read = 0  # tokens of the text that the position and those before it hold
        for position, target in enumerate(positions[1:]):
            read += 1 if positions[position] < VOCAB else len(phrases[positions[position] - VOCAB])
            there = batch["phrase_mask"][row].nonzero()[:, 0].tolist()
            logits = torch.cat(
                [hidden[position] @ weight.T + bias, *(embedded[e][1].double() @ hidden[position] for e in there)]
            )
            shares = logits.softmax(-1)
            chosen = target if target < VOCAB else VOCAB + there.index(target - VOCAB)
            phrase = phrase - shares[chosen].log()
            if target >= VOCAB and config.kl_positions == "token_targets":
                continue
            last = read + (1 if target < VOCAB else len(phrases[target - VOCAB])) - 1  # its position among the tokens
            p = shares[:VOCAB] / shares[:VOCAB].sum()
            kl = kl + (p * (p.log() - teacher[last - 1].detach())).sum()
        rows.append([torch.as_tensor(part) for part in (phrase, token, kl * tokens_a_step)])
    return [torch.stack(parts) for parts in zip(*rows, strict=True)]


def assert_as_by_hand(model, batch):
    output = model(**batch)
    parts = by_hand(model, batch)
    count = (batch["labels"][:, 1:] != IGNORED).sum()
    assert set(output.loss_parts) == {"phrase", "token", "kl"}
    for name, part in zip(("phrase", "token", "kl"), parts, strict=True):
        torch.testing.assert_close(output.row_losses[name].double(), part.detach().double(), **near)
        torch.testing.assert_close(output.loss_parts[name].double(), part.detach().double().sum() / count, **near)
    expected = sum(part.sum() for part in parts) / count
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(output.loss, parameters, allow_unused=True)
    wanted = torch.autograd.grad(expected, parameters, allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            torch.zeros(()) if one is None else one, torch.zeros_like(one) if other is None else other, **near
        )


@pytest.mark.parametrize("kind", KINDS)
def test_the_three_losses_are_those_taken_by_hand(kind):
    batch = phrase_batch(**KINDS[kind])
    assert len(batch["phrase_windows"]) == 0 or kind != "none"
    if kind in ("own_rows", "in_batch"):
        assert bool(batch["phrase_mask"].all()) == (kind == "in_batch")
    assert_as_by_hand(make_dynamic_model("gpt2"), batch)


@pytest.mark.parametrize("family", ["opt", "phi"])  # of another width and with an output bias
def test_they_are_with_a_matrix_for_each_way(family):
    assert_as_by_hand(make_dynamic_model(family, tie_phrase_embeddings=False), phrase_batch())


def test_l_kl_is_of_all_positions_where_that_is_asked_for():
    assert_as_by_hand(make_dynamic_model("llama", kl_positions="all"), phrase_batch())


def test_without_phrases_l_p_is_l_t_and_l_kl_is_zero():
    output = make_dynamic_model()(**phrase_batch(phrase_rate=0.0))
    torch.testing.assert_close(output.row_losses["phrase"], output.row_losses["token"])
    assert output.row_losses["kl"].abs().max() < 1e-5
    model = make_dynamic_model().train()
    model(**phrase_batch(phrase_rate=0.0)).loss.backward()
    assert all(p.grad is not None for p in model.parameters())  # processes must agree on what has a gradient


def test_rows_one_by_one_add_up_to_the_batch():
    model = make_dynamic_model()
    batch = phrase_batch(num_rows=8)
    count = (batch["labels"][:, 1:] != IGNORED).sum()
    model(**batch, num_items_in_batch=count).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    for row in range(8):
        one = {name: tensor[row : row + 1] for name, tensor in batch.items() if "windows" not in name}
        model(
            **one, windows=batch["windows"], phrase_windows=batch["phrase_windows"], num_items_in_batch=count
        ).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optional", ["phrase_mask", "phrase_attention_mask"])
def test_what_says_nothing_may_be_left_out(optional):
    model = make_dynamic_model()
    batch = phrase_batch(num_rows=1, negatives=None)
    expected = model(**batch).loss
    del batch[optional]
    torch.testing.assert_close(model(**batch).loss, expected)


@pytest.mark.parametrize("family", ["gpt2", "phi"])
def test_labels_alone_give_the_loss_of_the_sequence_as_it_stands(family, tmp_path):
    model, ids = make_dynamic_model(family), token_ids(2, 10)
    model.backbone.save_pretrained(tmp_path)
    labels = ids.masked_fill(torch.arange(10) < 3, IGNORED)
    plain = AutoModelForCausalLM.from_pretrained(tmp_path)(ids, labels=labels).loss
    output = model(ids, labels=labels)
    torch.testing.assert_close(output.loss, plain)
    assert set(output.loss_parts) == {"token"}
    mixed, vocabulary = phrase_ids(), make_vocabulary()
    output = model(mixed, labels=mixed, phrases=vocabulary)
    logp = output.logits[:, :-1].double().log_softmax(-1)
    expected = -logp.gather(2, mixed[:, 1:, None]).mean()
    torch.testing.assert_close(output.loss.double(), expected, **near)
    assert set(output.loss_parts) == {"phrase"}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_have_the_losses_and_the_gradients_of_padded_ones(kind, attention):
    model = make_dynamic_model("llama").double()
    model.set_attn_implementation(attention)
    found = []
    for padding_free in (False, True):
        output = model(**phrase_batch(**KINDS[kind], padding_free=padding_free))
        gradients = torch.autograd.grad(output.loss, list(model.parameters()), allow_unused=True)
        found.append((output.loss_parts, gradients))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_packed_documents_do_not_predict_each_other():
    model = make_dynamic_model("llama")
    documents = [token_ids(1, 4, seed=seed) for seed in (1, 2)]
    alone = sum(model(ids, labels=ids).row_losses["token"] for ids in documents)
    packed, positions = torch.cat(documents, dim=1), torch.tensor([[0, 1, 2, 3] * 2])
    output = model(packed, labels=packed, position_ids=positions)
    torch.testing.assert_close(output.row_losses["token"], alone, **near)
    torch.testing.assert_close(output.loss, alone[0] / 6, **near)
