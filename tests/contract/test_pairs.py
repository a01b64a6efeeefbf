"""What users of encoder-decoder models do by reflex, beside what all models owe: plain trainers, and `generate`."""

import pytest
import torch
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hf_targets.data.tokenization import word_level_tokenizer
from tests.tiny_backbones import VOCAB
from tests.tiny_seq2seq import PAD, make_pair_drafting_model, make_pair_model, pairs
from tests.trainer_runs import SHORT

WORDS = word_level_tokenizer([" ".join(f"w{number}" for number in range(VOCAB - 3)) + "\n"])
TEN = {"max_new_tokens": 10, "eos_token_id": None}
EVERYTHING = {
    "return_dict_in_generate": True,
    "output_scores": True,
    "output_logits": True,
    "output_attentions": True,
    "output_hidden_states": True,
}
some = pytest.mark.parametrize("family", ["marian", "t5"])


def rows(num_rows=24):
    """Sources and labels of different lengths."""
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(4, VOCAB, (16,), generator=generator).tolist() for _ in range(num_rows)]
    return Dataset.from_list(
        [{"input_ids": text[: 3 + n % 4], "labels": text[9 : 11 + n % 5]} for n, text in enumerate(texts)]
    )


def make_trainer(folder, **options):
    model = make_pair_model()
    options = {**SHORT, "report_to": "none", "optim": "sgd", "train_sampling_strategy": "sequential", **options}
    return Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(output_dir=str(folder), **options),
        train_dataset=rows(),
        eval_dataset=rows(7),
        data_collator=DataCollatorForSeq2Seq(WORDS, model=model),
    )


def sources(num_rows=3):
    batch = pairs(num_rows)
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def test_a_plain_trainer_predicts_what_the_model_generates(tmp_path):
    options = {"predict_with_generate": True, "per_device_eval_batch_size": 7}
    trainer = make_trainer(tmp_path, **options)
    batch = trainer.data_collator([dict(row) for row in trainer.eval_dataset])
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    for way in ({"num_beams": 2, "ensemble_weight": 0.3}, {"num_beams": 1, "draft_tokens": 2}):
        found = trainer.predict(trainer.eval_dataset, max_new_tokens=6, **way)
        expected = trainer.model.generate(**source, max_new_tokens=6, **way)
        assert found.predictions[:, : expected.shape[1]].tolist() == expected.tolist()
        assert found.metrics["test_loss"] == pytest.approx(trainer.model(**batch).loss.item(), rel=1e-4)


@some
@pytest.mark.parametrize("way", [{"draft_tokens": 3}, {"ensemble_weight": 0.3, "num_beams": 2}], ids=str)
def test_a_source_that_the_encoder_has_read_gives_the_text_of_its_ids(family, way):
    model, source = make_pair_drafting_model(family, "difference"), sources()
    expected = model.generate(**source, **way, **TEN)
    read, mask = model.get_encoder()(**source), source["attention_mask"]
    labels = pairs()["labels"]
    whole = model(encoder_outputs=(read[0],), attention_mask=mask, labels=labels)
    assert torch.equal(whole.logits, model(**source, labels=labels).logits)
    assert torch.equal(model.generate(encoder_outputs=read, attention_mask=mask, **way, **TEN), expected)


@some
@pytest.mark.parametrize("way", [{"ensemble_weight": 0.3}, {"draft_tokens": 2}], ids=str)
def test_several_texts_of_a_source_are_drawn_as_those_of_its_copies(family, way):
    model, texts = make_pair_drafting_model(family, "difference"), []
    copies = {name: ids.repeat_interleave(2, dim=0) for name, ids in sources().items()}
    for source, count in ((sources(), 2), (copies, 1)):
        torch.manual_seed(0)
        texts.append(model.generate(**source, do_sample=True, num_return_sequences=count, **way, **TEN))
    assert texts[0].shape == (6, 11) and torch.equal(*texts)


@some
@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_beginnings_of_different_lengths_go_on_under_their_mask(family, weight):
    model = make_pair_drafting_model(family, "difference")
    start = model.config.decoder_start_token_id
    text = {
        "decoder_input_ids": torch.tensor([[PAD, start, 5], [start, 7, 5], [PAD, start, 8]]),
        "decoder_attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1], [0, 1, 1]]),
    }
    expected = model.generate(**sources(), **text, ensemble_weight=weight, **TEN)
    for way in ({"use_cache": False}, {"draft_tokens": 2}):
        assert torch.equal(model.generate(**sources(), **text, ensemble_weight=weight, **way, **TEN), expected)
    if not weight:
        assert torch.equal(model.backbone.generate(**sources(), **text, **TEN), expected)
    one = {name: value[:1] for name, value in {**sources(), **text}.items()}
    one_text = model.generate(**one, ensemble_weight=weight, draft_tokens=2, **TEN)
    assert torch.equal(one_text, expected[:1])


@some
def test_generation_returns_all_that_the_backbones_does(family):
    model = make_pair_model(family, target="embedding").double()
    model.set_attn_implementation("eager")
    expected = model.backbone.generate(**sources(1), **EVERYTHING, **TEN)
    found = model.generate(**sources(1), **EVERYTHING, **TEN)
    assert expected.keys() <= found.keys() and torch.equal(found.sequences, expected.sequences)
    for name in ("scores", "logits", "encoder_hidden_states", "encoder_attentions"):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-9)
    for name in ("decoder_hidden_states", "decoder_attentions", "cross_attentions"):
        for one, other in zip(found[name], expected[name], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    told = {name: True for name in ("return_dict_in_generate", "output_scores", "output_logits")}
    drafted = model.generate(**sources(1), **told, draft_tokens=3, **TEN)
    for name in ("scores", "logits"):
        torch.testing.assert_close(drafted[name], expected[name], rtol=1e-9, atol=1e-9)
