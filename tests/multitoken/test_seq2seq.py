"""Heads on encoder-decoder models: the backbone unchanged, the loss and the ensemble as the formulas say."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, EncoderDecoderCache

from hf_targets import MultiTokenForCausalLM, MultiTokenForSeq2SeqLM, MultiTokenSeq2SeqConfig
from tests.multitoken.by_hand import equations
from tests.tiny_backbones import VOCAB, make_backbone
from tests.tiny_seq2seq import PAD, SEQ2SEQ_CONFIGS, SEQ2SEQ_FAMILIES, make_pair_backbone, make_pair_model, pairs

families = pytest.mark.parametrize("family", SEQ2SEQ_FAMILIES)
some = pytest.mark.parametrize("family", ["marian", "bart", "t5"])
targets = pytest.mark.parametrize("target", ["difference", "embedding", "conditional"])


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
def test_the_loss_its_gradient_and_the_ensemble_are_the_equations(family, target):
    batch, model = pairs(), make_pair_model(family, target=target, loss_weight=0.3).double()
    ids = model.prepare_decoder_input_ids_from_labels(batch["labels"])
    encoded = model.get_encoder()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
    source = {"encoder_hidden_states": encoded, "encoder_attention_mask": batch["attention_mask"]}
    hidden = model.get_decoder()(input_ids=ids, use_cache=False, **source)[0]
    loss, parts, logits = equations(model, hidden, ids, batch["labels"], weight=0.4)
    output = model(**batch)
    torch.testing.assert_close(torch.stack(list(output.loss_parts.values())), parts.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(output.loss, loss, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(model(**batch, ensemble_weight=0.4).logits, logits, rtol=1e-9, atol=1e-9)
    gradients = (torch.autograd.grad(one, model.get_output_embeddings().weight)[0] for one in (output.loss, loss))
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)


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


@some
def test_heads_alone_come_back_on_their_base_model(family, tmp_path):
    base = make_pair_backbone(family)
    base.save_pretrained(tmp_path / "base")
    model = MultiTokenForSeq2SeqLM.from_base(tmp_path / "base", ngram_size=3, ensemble_weight=0.2).eval()
    model.save_pretrained(tmp_path / "heads", heads_only=True)
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


def test_the_other_kind_of_base_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no encoder; use MultiTokenForCausalLM"):
        MultiTokenForSeq2SeqLM.from_base(make_backbone("gpt2"))
    with pytest.raises(ValueError, match="has an encoder; use MultiTokenForSeq2SeqLM"):
        MultiTokenForCausalLM.from_base(make_pair_backbone())
    make_pair_model().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="of kind 'multitoken_seq2seq', not 'multitoken'"):
        MultiTokenForCausalLM.from_pretrained(tmp_path)


def test_a_decoder_whose_first_token_is_not_known_is_told():
    model = make_pair_model("bart")
    model.backbone.config.decoder_start_token_id = None
    with pytest.raises(ValueError, match=r"set config\.decoder_start_token_id"):
        model(**pairs())


def test_arguments_that_do_not_fit_are_told():
    model, batch = make_pair_model(), pairs()
    source, labels, zeros = batch["input_ids"], batch["labels"], torch.zeros_like(batch["input_ids"])
    embeds = model.get_input_embeddings()(labels.clamp(min=PAD))
    for changes, told in (
        ({"input_ids": None, "attention_mask": None}, "the encoder needs a text"),
        ({"labels": None}, "the decoder needs a text"),
        ({"attention_mask": torch.ones(3, 6)}, "attention_mask must be"),
        ({"labels": labels[:2]}, "got 2 for 3"),
        ({"input_ids": source[:, :0], "attention_mask": None}, "input_ids .* at least one token"),
        ({"input_ids": source.clone().fill_(VOCAB)}, "input_ids must be in"),
        ({"decoder_input_ids": labels[:, :0]}, "decoder_input_ids or .* at least one token"),
        ({"decoder_input_ids": labels.float()}, "decoder_input_ids must be token ids"),
        ({"decoder_input_ids": source[:, :4]}, "labels must have the shape"),
        ({"decoder_inputs_embeds": embeds}, "need token ids"),
        ({"shift_labels": zeros}, "shift_labels"),
        ({"position_ids": zeros}, "decoder_position_ids"),
        ({"token_type_ids": zeros + 1}, "token_type_ids must be 0"),
    ):
        with pytest.raises(ValueError, match=told):
            model(**{**batch, **changes})
    assert torch.equal(model(**batch, token_type_ids=zeros).loss, model(**batch).loss)


def test_texts_longer_than_the_positions_are_told():
    for length, options in ((41, {}), (4, {"max_new_tokens": 60, "eos_token_id": None})):
        with pytest.raises(ValueError, match="must fit into the model's 40 positions"):
            make_pair_model().generate(torch.full((1, length), 5), **options)
