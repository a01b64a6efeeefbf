"""Heads on masked models: their words, their loss in float64, what leaks, and which models can have them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, BertModel, EsmConfig, LongformerConfig, MobileBertConfig, XLMConfig

from hf_targets import MultiTokenForMaskedLM
from hf_targets.maths.differences import word_differences
from hf_targets.maths.losses import IGNORED
from hf_targets.multitoken.masked import following_tokens
from tests.memory import realigned
from tests.tiny_backbones import SMALL, VOCAB, make_backbone
from tests.tiny_masked import MASK, MASKED_CONFIGS, make_masked_backbone, make_masked_model, masked_batch
from tests.tiny_seq2seq import make_pair_backbone

every_family = pytest.mark.parametrize("family", MASKED_CONFIGS)


@given(data=st.data(), rows=st.integers(1, 3), time=st.integers(1, 8), num_following=st.integers(1, 4))
def test_the_words_that_follow_are_those_that_a_loop_finds(data, rows, time, num_following):
    text = torch.arange(rows * time).view(rows, time) + 100
    masked = torch.tensor(data.draw(st.lists(st.booleans(), min_size=rows * time, max_size=rows * time))).view(
        rows, time
    )
    lengths = [data.draw(st.integers(0, time)) for _ in range(rows)]
    keep = torch.arange(time) < torch.tensor(lengths)[:, None]
    masked &= keep
    labels = text.masked_fill(~masked, IGNORED)
    seen = text.masked_fill(masked, MASK)
    expected, alone = [], []
    for row in range(rows):
        own = [text[row, i].item() for i in range(time) if masked[row, i]]
        for i in range(time):
            if masked[row, i]:
                rest = text[row, i : lengths[row]].tolist()[: num_following + 1]
                expected.append(rest + [IGNORED] * (num_following + 1 - len(rest)))
                rest = own[own.index(text[row, i].item()) :][: num_following + 1]
                alone.append(rest + [IGNORED] * (num_following + 1 - len(rest)))
    assert following_tokens(labels, seen, keep, num_following).tolist() == expected
    assert following_tokens(labels, None, keep, num_following).tolist() == alone


def test_a_difference_needs_all_tokens_between():
    labels, text = torch.tensor([[IGNORED, 8, IGNORED, IGNORED]]), torch.tensor([[7, MASK, 9, 10]])
    keep = torch.tensor([[True, True, False, True]])  # a hole
    assert following_tokens(labels, text, keep, 2).tolist() == [[8, IGNORED, IGNORED]]


@every_family
@pytest.mark.parametrize("masked_only", [False, True])
def test_the_loss_is_that_of_differences_taken_one_by_one(family, masked_only):
    model = make_masked_model(family, masked_only=masked_only, ngram_size=3).double().train()
    batch = masked_batch(2, 14)
    output = model(**batch, output_last_hidden_state=True)
    layer = model.get_output_embeddings()
    sums, targets = torch.zeros(4, dtype=torch.float64), (batch["labels"] != IGNORED).sum()
    truth = torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])
    for row in range(2):
        places = (batch["labels"][row] != IGNORED).nonzero().flatten().tolist()
        for order, place in enumerate(places):
            state = output.last_hidden_state[row, place]
            words = truth[row, places[order:]] if masked_only else truth[row, place:]
            sums[0] += F.cross_entropy(layer(state), words[0])
            for n in range(1, min(3, len(words) - 1) + 1):
                embeddings = layer.weight[words[: n + 1]][None]
                conjugate = (embeddings[0, n] - word_differences(embeddings, n)[0, 0]).detach()
                sums[n] += F.cross_entropy(layer(model.heads[n - 1](state) + conjugate), words[n])
    expected = [part / targets for part in sums]
    found = [output.loss_parts[name] for name in ("masked_token", "head_1", "head_2", "head_3")]
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=1e-6, atol=1e-9)
    by_hand = expected[0] / 2 + 0.7 / 6 * sum(expected[1:])
    torch.testing.assert_close(output.loss, by_hand, rtol=1e-6, atol=1e-9)
    weights = [layer.weight, *model.heads.parameters()]  # the conjugate is a constant
    gradients = (torch.autograd.grad(loss, weights, retain_graph=True) for loss in (output.loss, by_hand))
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


def test_words_that_follow_directly_are_predicted_by_the_simple_heads():
    model = make_masked_model(kind="embedding").double().train()
    batch = masked_batch(2, 14)
    output = model(**batch, output_last_hidden_state=True)
    layer, states = model.get_output_embeddings(), output.last_hidden_state[batch["labels"] != IGNORED]
    words = following_tokens(batch["labels"], batch["input_ids"], torch.ones(2, 14, dtype=torch.bool), 2)
    for n in (1, 2):
        loss = F.cross_entropy(layer(model.heads[n - 1](states)), words[:, n], ignore_index=IGNORED, reduction="sum")
        torch.testing.assert_close(output.loss_parts[f"head_{n}"], loss / len(words))


@pytest.mark.parametrize("masked_only", [False, True])
def test_only_the_papers_variant_sees_what_its_heads_predict(masked_only):
    """The gradient of a head's own output by the embedding that the model reads at the position of its target."""
    model = make_masked_model(masked_only=masked_only, ngram_size=1).double()
    ids = torch.tensor([[5, 11, 12, 13, 14, 15, 16, 17]])
    masked = torch.tensor([[0, 0, 1, 0, 0, 1, 0, 0]]).bool()  # 12 and 15
    given, labels = ids.masked_fill(masked, MASK), ids.masked_fill(~masked, IGNORED)
    words = following_tokens(labels, None if masked_only else given, torch.ones_like(masked), 1)
    target = words[0, 1].item()
    assert target == (15 if masked_only else 13)
    embeds = model.get_input_embeddings()(given).detach().requires_grad_()
    states = model(inputs_embeds=embeds, output_last_hidden_state=True).last_hidden_state
    (gradient,) = torch.autograd.grad(model.heads[0](states[0, 2]).sum(), embeds)
    visible = (given[0] == target).nonzero().flatten().tolist()
    assert visible == ([] if masked_only else [3])  # the word itself is nowhere in what the model reads
    assert all(gradient[0, place].abs().max() > 1e-6 for place in visible)


@every_family
def test_logits_are_those_of_the_model_bit_for_bit_and_are_skipped_in_training(family):
    base = make_masked_backbone(family)
    batch = masked_batch()
    expected = base(batch["input_ids"]).logits
    model = MultiTokenForMaskedLM.from_base(base)
    assert torch.equal(model(**batch).logits, expected)
    assert model.train()(**batch).logits is None
    assert torch.equal(model(**batch, skip_logits=False).logits, expected)


def test_models_that_cannot_have_heads_are_refused_in_words():
    mobile = MobileBertConfig(**SMALL, intermediate_size=48, embedding_size=16, intra_bottleneck_size=32)
    esm = AutoModelForMaskedLM.from_config(
        EsmConfig(**SMALL, intermediate_size=48, max_position_embeddings=40, pad_token_id=0, mask_token_id=MASK)
    )
    torch.nn.init.ones_(esm.lm_head.bias)  # which it adds to what its matrix gives
    for base, told in (
        (make_backbone("gpt2"), "causal; choose a masked model"),
        (make_pair_backbone(), "encoder; choose a masked model"),
        (BertModel(MASKED_CONFIGS["bert"]()), "AutoModelForMaskedLM"),
        (AutoModelForMaskedLM.from_config(mobile), "MobileBertForMaskedLM"),
        (esm, "EsmForMaskedLM"),
        (make_masked_model(), "heads already"),
    ):
        with pytest.raises(ValueError, match=told):
            MultiTokenForMaskedLM.from_base(base)


@pytest.mark.parametrize("pad", [0, 7, None])
def test_padding_ids_do_not_hide_that_a_model_reads_both_sides(pad):
    config = XLMConfig(vocab_size=VOCAB, emb_dim=32, n_layers=1, n_heads=4, pad_index=VOCAB - 1 if pad is None else pad)
    assert MultiTokenForMaskedLM.from_base(AutoModelForMaskedLM.from_config(config)).heads is not None
    wide = {**SMALL, "num_hidden_layers": 1, "intermediate_size": 48, "max_position_embeddings": 40}
    longformer = LongformerConfig(**wide, attention_window=4, pad_token_id=pad or 0)
    assert MultiTokenForMaskedLM.from_base(AutoModelForMaskedLM.from_config(longformer)).heads is not None


@pytest.mark.parametrize("load", [MultiTokenForMaskedLM, AutoModelForMaskedLM])
def test_heads_alone_come_back_on_their_base_model(load, tmp_path):
    make_masked_backbone().save_pretrained(tmp_path / "base")
    fields = {"ngram_size": 3, "masked_only": True, "loss_weight": 0.3}
    model = MultiTokenForMaskedLM.from_base(tmp_path / "base", **fields).eval()
    model.save_pretrained(tmp_path / "heads", heads_only=True)
    again = realigned(load.from_pretrained(tmp_path / "heads"))
    batch = masked_batch()
    assert type(again) is MultiTokenForMaskedLM and again.config.masked_only and len(again.heads) == 3
    assert torch.equal(again(**batch).loss, realigned(model)(**batch).loss)
    for saved in ("heads", "whole"):
        model.save_pretrained(tmp_path / saved, heads_only=saved == "heads")
        with pytest.raises(ValueError, match=r"ensemble_weight must be None, got 0\.9"):
            AutoModelForMaskedLM.from_pretrained(tmp_path / saved, ensemble_weight=0.9)
