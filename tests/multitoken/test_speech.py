"""Heads on a model that writes what it hears: trained, saved, and drafting the plain text."""

import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, default_data_collator

from hf_targets import (
    MultiTokenForSeq2SeqLM,
    MultiTokenSeq2SeqTrainer,
    MultiTokenSeq2SeqTrainingArguments,
    draft,
)
from tests.multitoken.by_hand import equations
from tests.multitoken.test_draft import inputs_of, make_plain
from tests.tiny_backbones import token_ids


def make_speech_model(**fields):
    return MultiTokenForSeq2SeqLM.from_base(make_plain("whisper"), **{"ngram_size": 4, **fields}).eval()


@pytest.fixture(scope="module")
def drafting():
    """Return a model whose heads have learnt what it writes."""
    model = make_speech_model(head="conditional", target="difference", loss_weight=6.0)
    speech = inputs_of(model.backbone, 3)
    texts = model.backbone.generate(**speech, max_new_tokens=30)
    optimizer = torch.optim.Adam(model.heads.parameters(), lr=4e-2)
    for _ in range(20):
        loss = model(**speech, decoder_input_ids=texts[:, :-1], labels=texts[:, 1:]).loss
        optimizer.zero_grad()
        loss.backward(inputs=list(model.heads.parameters()))
        optimizer.step()
    return model


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "way",
    [
        {"draft_tokens": 3},
        {"draft_tokens": 3, "draft_branches": 2},
        {"draft_tokens": "auto"},
        {"draft_tokens": 2, "custom_generate": draft()},
        {"num_beams": 2},
    ],
    ids=str,
)
def test_the_text_is_that_of_the_model_without_heads(drafting, way, rows):
    speech, passes = inputs_of(drafting.backbone, rows), []
    beams = {"num_beams": way.get("num_beams", 1), "max_new_tokens": 30}
    plain = drafting.backbone.generate(**speech, **beams)
    hook = drafting.register_forward_hook(lambda *_: passes.append(1))
    assert torch.equal(drafting.generate(**speech, **{**beams, **way}), plain)
    hook.remove()
    assert len(passes) < 20 or way.get("draft_tokens") in (None, "auto")


@pytest.mark.parametrize("weight", [0.0, 0.4])
def test_the_cache_changes_no_text_and_the_ensemble_does(drafting, weight):
    speech = inputs_of(drafting.backbone, 1)
    told = {**speech, "max_new_tokens": 20, "ensemble_weight": weight}
    cached = drafting.generate(**told)
    assert torch.equal(cached, drafting.generate(**told, use_cache=False))
    assert torch.equal(cached, drafting.generate(**told, draft_tokens=3))
    assert torch.equal(cached, drafting.backbone.generate(**speech, max_new_tokens=20)) == (weight == 0)


def test_the_loss_and_the_ensemble_are_those_of_the_formulas_and_are_saved(tmp_path):
    model, texts = make_speech_model(loss_weight=0.3).double(), token_ids(2, 6)
    given = {"input_features": torch.randn(2, 8, 40).double(), "decoder_input_ids": texts}
    labels = F.pad(texts[:, 1:], (0, 1), value=-100)
    hidden = model.backbone.model(**given)[0]
    loss, _, logits = equations(model, hidden, texts, labels, weight=0.4)
    torch.testing.assert_close(model(**given, labels=labels).loss, loss, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model(**given, ensemble_weight=0.4).logits, logits, rtol=1e-6, atol=1e-6)
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype="auto")
    torch.testing.assert_close(again(**given).logits, model(**given).logits)


def test_what_speech_cannot_have_is_refused():
    model = make_speech_model()
    with pytest.raises(ValueError, match="input_features"):
        model(decoder_input_ids=token_ids(1, 3))
    with pytest.raises(ValueError, match="streamer"):
        model.generate(**inputs_of(model.backbone, 1), draft_tokens=2, streamer=object())


def test_a_trainer_learns_from_speech_and_evaluates_it(tmp_path):
    model, speech = make_speech_model(), inputs_of(make_plain("whisper"), 3)["input_features"]
    rows = Dataset.from_dict({"input_features": speech.tolist(), "labels": token_ids(3, 6).tolist()}).with_format(
        "torch"
    )
    told = {"max_steps": 1, "use_cpu": True, "report_to": "none", "save_strategy": "no", "learning_rate": 0.1}
    args = MultiTokenSeq2SeqTrainingArguments(str(tmp_path), **told)
    data = {"train_dataset": rows, "eval_dataset": rows, "data_collator": default_data_collator}
    trainer = MultiTokenSeq2SeqTrainer(model, args, **data)
    before = trainer.evaluate()["eval_perplexity"]
    trainer.train()
    assert trainer.evaluate()["eval_perplexity"] < before
