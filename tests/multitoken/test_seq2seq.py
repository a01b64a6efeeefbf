"""Heads on encoder-decoder models: the backbone unchanged, the loss and the ensemble as the formulas say."""

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, EncoderDecoderCache

from hf_targets import MultiTokenForCausalLM, MultiTokenForSeq2SeqLM, MultiTokenSeq2SeqConfig
from hf_targets.maths.differences import conjugate_coefficients
from tests.tiny_backbones import VOCAB, make_backbone
from tests.tiny_seq2seq import (
    PAD,
    SEQ2SEQ_CONFIGS,
    SEQ2SEQ_FAMILIES,
    make_pair_backbone,
    make_pair_model,
    pairs,
)

families = pytest.mark.parametrize("family", SEQ2SEQ_FAMILIES)
some = pytest.mark.parametrize("family", ["marian", "bart", "t5"])
targets = pytest.mark.parametrize("target", ["difference", "embedding", "conditional"])


def states_by_hand(model, batch, ids):
    """The decoder's hidden states, and its output matrix with its bias, in float64."""
    backbone = model.backbone.double()
    encoded = backbone.get_encoder()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    mask = batch["attention_mask"]
    hidden = backbone.get_decoder()(
        input_ids=ids, encoder_hidden_states=encoded[0], encoder_attention_mask=mask, use_cache=False
    )[0]
    bias = backbone.final_logits_bias[0] if hasattr(backbone, "final_logits_bias") else torch.zeros(VOCAB).double()
    return hidden, backbone.get_output_embeddings().weight, bias


def scale_of(model):
    """The factor between the decoder's hidden states and what its output matrix reads."""
    return 32**-0.5 if getattr(model.backbone.config, "scale_decoder_outputs", False) else 1.0


def predicted_by_hand(model, hidden, rows, ids, row, at, n):
    """What head n, at position `at` of a row, says for the target of position at + n."""
    conjugate = sum(c * rows[ids[row, at + 1 + j]] for j, c in enumerate(conjugate_coefficients(n)))
    head = model.heads[n - 1]
    state = hidden[row, at]
    said = head(state, conjugate) if model.config.head == "conditional" else head(state)
    return said + conjugate if model.config.target == "difference" else said


@families
def test_a_backbone_keeps_its_logits_bit_for_bit_and_its_loss(family):
    batch, model = pairs(), make_pair_model(family)
    own, bare = model(**batch), model.backbone(**batch)
    assert torch.equal(own.logits, bare.logits)
    torch.testing.assert_close(own.loss_parts["next_token"], bare.loss.detach())
    bare = make_pair_backbone(family)(**batch)
    assert torch.equal(own.logits, bare.logits)


@some
@targets
def test_the_loss_is_equation_6_by_brute_force(family, target):
    batch, model = pairs(), make_pair_model(family, target=target, loss_weight=0.3).double()
    ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    hidden, rows, bias = states_by_hand(model, batch, ids)
    labels, sums = batch["labels"], [0.0] * 4
    for row in range(len(labels)):
        for at in range(labels.shape[1]):
            for n in range(min(4, at + 1)):  # the prediction of this target that head n made n positions before
                if labels[row, at] != -100:
                    state = hidden[row, at] if n == 0 else predicted_by_hand(model, hidden, rows, ids, row, at - n, n)
                    sums[n] += F.cross_entropy(scale_of(model) * rows @ state + bias, labels[row, at])
    count = int((labels != -100).sum())
    output = model(**batch)
    for n, name in enumerate(["next_token", "head_1", "head_2", "head_3"]):
        torch.testing.assert_close(output.loss_parts[name], sums[n].detach() / count, rtol=1e-9, atol=1e-9)
    expected = (0.5 * sums[0] + 0.3 / 6 * sum(sums[1:])) / count
    torch.testing.assert_close(output.loss, expected, rtol=1e-9, atol=1e-9)


@some
@targets
def test_the_ensemble_is_equation_13_by_brute_force(family, target):
    batch, model = pairs(), make_pair_model(family, target=target).double()
    ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    hidden, rows, bias = states_by_hand(model, batch, ids)
    logits = model(**batch, ensemble_weight=0.4).logits
    for row in range(len(ids)):
        for at in range(ids.shape[1]):
            terms = [predicted_by_hand(model, hidden, rows, ids, row, at - n, n) for n in range(1, min(4, at + 1))]
            mixed = 0.6 * hidden[row, at] + 0.4 * sum(terms) / len(terms) if terms else hidden[row, at]
            torch.testing.assert_close(logits[row, at], scale_of(model) * rows @ mixed + bias, rtol=1e-9, atol=1e-9)


@families
def test_cached_steps_are_as_a_whole_text(family):
    batch, model = pairs(), make_pair_model(family).double()
    ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    whole = model(**source, decoder_input_ids=ids, ensemble_weight=0.3).logits
    outputs = model(**source, decoder_input_ids=ids[:, :2], ensemble_weight=0.3, use_cache=True)
    parts, cache = [outputs.logits], outputs.past_key_values
    assert isinstance(cache, EncoderDecoderCache)
    for start, end in ((2, 3), (3, 5), (5, 6)):
        step = model(**source, decoder_input_ids=ids[:, start:end], past_key_values=cache, ensemble_weight=0.3)
        parts.append(step.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-9)


@some
@targets
def test_no_gradient_comes_from_future_target_tokens(family, target):
    batch, model = pairs(1), make_pair_model(family, target=target).double()
    ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    seen = []
    model.get_decoder().embed_tokens.register_forward_hook(lambda _, __, rows: seen.append(rows.retain_grad() or rows))
    model(input_ids=batch["input_ids"], decoder_input_ids=ids, ensemble_weight=0.3).logits[0, 3].sum().backward()
    gradient = seen[-1].grad[0].abs().sum(dim=1)  # of the decoder's embeddings
    assert (gradient[4:] == 0).all()
    assert (gradient[1:4] > 0).all()


def test_the_conjugate_gives_the_output_matrix_no_gradient():
    batch, model = pairs(), make_pair_model("mt5").double()  # its output matrix is not tied
    ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    hidden, rows, bias = states_by_hand(model, batch, ids)
    model(**batch).loss.backward()
    found = model.get_output_embeddings().weight.grad.clone()
    labels, total = batch["labels"], 0.0
    for row in range(len(labels)):
        for at in range(labels.shape[1]):
            for n in range(min(4, at + 1)):
                if labels[row, at] != -100:
                    state, share = hidden[row, at], 0.5
                    if n:
                        state = predicted_by_hand(model, hidden, rows.detach(), ids, row, at - n, n)
                        share = model.config.loss_weight / 6
                    total = total + share * F.cross_entropy(scale_of(model) * rows @ state + bias, labels[row, at])
    (expected,) = torch.autograd.grad(total / (labels != -100).sum(), rows)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-10)


@families
@pytest.mark.parametrize("heads_only", [False, True])
def test_a_checkpoint_is_the_same_model(family, heads_only, tmp_path):
    base = make_pair_backbone(family)
    base.save_pretrained(tmp_path / "base")
    model = MultiTokenForSeq2SeqLM.from_base(tmp_path / "base", ngram_size=3, ensemble_weight=0.2).eval()
    model.save_pretrained(tmp_path / "heads", heads_only=heads_only)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "heads")
    assert type(loaded) is MultiTokenForSeq2SeqLM
    assert loaded.config.output_scale == model.config.output_scale
    for (name, kept), (_, found) in zip(model.state_dict().items(), loaded.state_dict().items(), strict=True):
        assert torch.equal(kept, found), name
    torch.testing.assert_close(loaded(**pairs()).logits, model(**pairs()).logits)


def test_the_output_scale_is_found_and_kept():
    model = make_pair_model("t5")
    assert model.config.output_scale == 32**-0.5
    config = MultiTokenSeq2SeqConfig(backbone=SEQ2SEQ_CONFIGS["t5"]().to_dict(), ngram_size=3)
    assert MultiTokenForSeq2SeqLM(config).config.output_scale == 32**-0.5
    with torch.device("meta"):
        assert MultiTokenForSeq2SeqLM(model.config).config.output_scale == 32**-0.5


def test_a_source_may_be_of_another_vocabulary():
    config = SEQ2SEQ_CONFIGS["marian"]()
    config.update({"vocab_size": 60, "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False})
    backbone, batch = AutoModelForSeq2SeqLM.from_config(config).eval(), pairs()
    model = MultiTokenForSeq2SeqLM.from_base(backbone).eval()
    batch["input_ids"][0, 0] = 59
    assert torch.equal(model(**batch).logits, backbone(**batch).logits)
    batch["input_ids"][0, 0] = 60
    with pytest.raises(ValueError, match=r"input_ids must be in \[0, 59\]"):
        model(**batch)
    with pytest.raises(ValueError, match=r"labels must be in \[0, 49\]"):
        model(input_ids=batch["input_ids"][1:], labels=torch.full((2, 4), 50))


class TestBadInput:
    def test_a_causal_model_is_refused_and_the_other_way_round(self, tmp_path):
        with pytest.raises(ValueError, match="has no encoder; use MultiTokenForCausalLM"):
            MultiTokenForSeq2SeqLM.from_base(make_backbone("gpt2"))
        with pytest.raises(ValueError, match="has an encoder; use MultiTokenForSeq2SeqLM"):
            MultiTokenForCausalLM.from_base(make_pair_backbone())
        make_pair_model().save_pretrained(tmp_path)
        with pytest.raises(ValueError, match="of kind 'multitoken_seq2seq', not 'multitoken'"):
            MultiTokenForCausalLM.from_pretrained(tmp_path)

    def test_a_call_without_source_or_text(self):
        model, batch = make_pair_model(), pairs()
        with pytest.raises(ValueError, match="the encoder needs a text"):
            model(decoder_input_ids=batch["input_ids"])
        with pytest.raises(ValueError, match="the decoder needs a text"):
            model(input_ids=batch["input_ids"])

    def test_no_decoder_start(self):
        model = make_pair_model("bart")
        model.backbone.config.decoder_start_token_id = None
        with pytest.raises(ValueError, match=r"set config\.decoder_start_token_id"):
            model(**pairs())

    def test_labels_of_another_shape(self):
        batch = pairs()
        with pytest.raises(ValueError, match=r"the shape of decoder_input_ids, \(3, 4\), got \(3, 6\)"):
            make_pair_model()(**batch, decoder_input_ids=batch["input_ids"][:, :4])

    def test_ids_outside_of_the_vocabulary(self):
        batch = pairs()
        batch["input_ids"][0, 0] = VOCAB
        with pytest.raises(ValueError, match=f"input_ids must be in .0, {VOCAB - 1}."):
            make_pair_model()(**batch)

    def test_a_source_longer_than_the_positions(self):
        with pytest.raises(ValueError, match="a source must fit into the model's 40 positions, got 41 tokens"):
            make_pair_model().generate(torch.full((1, 41), 5))

    def test_arguments_of_causal_models(self):
        model, batch = make_pair_model(), pairs()
        zeros = torch.zeros_like(batch["input_ids"])
        for name, told in (
            ("shift_labels", "give labels"),
            ("position_ids", "decoder_position_ids"),
        ):
            with pytest.raises(ValueError, match=f"{name} is for causal models.*{told}"):
                model(**batch, **{name: zeros})
        with pytest.raises(ValueError, match="token_type_ids must be 0"):
            model(**batch, token_type_ids=zeros + 1)
        assert torch.equal(model(**batch, token_type_ids=zeros).loss, model(**batch).loss)

    def test_sources_that_do_not_fit(self):
        model, batch = make_pair_model(), pairs()
        source, labels = batch["input_ids"], batch["labels"]
        for changes, told in (
            ({"attention_mask": torch.ones(3, 6)}, r"attention_mask must be \(batch, time\), \(3, 7\), got \(3, 6\)"),
            ({"attention_mask": torch.ones(1, 7)}, r"attention_mask must be \(batch, time\), \(3, 7\), got \(1, 7\)"),
            ({"labels": labels[:2]}, "got 2 for 3"),
            ({"input_ids": source[:1], "attention_mask": None}, "got 3 for 1"),
            ({"input_ids": source[:, :0], "attention_mask": None}, r"^input_ids .* at least one token, got .*\(3, 0\)"),
            ({"input_ids": source[0], "attention_mask": None}, r"at least one token, got shape \(7,\)"),
            ({"decoder_input_ids": labels[:, :0]}, r"decoder_input_ids or .* at least one token, got shape \(3, 0\)"),
            ({"decoder_input_ids": labels.float()}, "decoder_input_ids must be token ids, integers"),
        ):
            with pytest.raises(ValueError, match=told):
                model(**{**batch, **changes})

    def test_more_new_tokens_than_positions(self):
        with pytest.raises(ValueError, match="must fit into the model's 40 positions"):
            make_pair_model().generate(torch.full((1, 4), 5), max_new_tokens=60, eos_token_id=None)

    def test_word_differences_without_ids(self):
        model, batch = make_pair_model(), pairs()
        embeds = model.get_input_embeddings()(batch["labels"].clamp(min=PAD))
        with pytest.raises(ValueError, match="need token ids"):
            model(**batch, decoder_inputs_embeds=embeds)
