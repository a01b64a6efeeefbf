"""Published checkpoints of Difformer, loaded without fairseq, compute what the published program computes."""

import warnings

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_targets import DifformerForConditionalGeneration, fairseq_tokenizer
from tests.gaussian_diffusion.published_checkpoints import (
    LATENT,
    POSITIONS,
    SIZE,
    WORDS,
    published_options,
    published_prediction,
    published_tensors,
)

FIRST_WORDS = 4
"""The special tokens of fairseq."""


def checkpoint(**options):
    return {
        "args": published_options(**options),
        "model": published_tensors(),
        "optimizer_history": [{"num_updates": 3}],
    }


def saved(folder, content=None, name="checkpoint_best.pt"):
    torch.save(checkpoint() if content is None else content, folder / name)
    return folder / name


@pytest.mark.parametrize("where", ["file", "folder", "in settings", "loaded"])
def test_it_predicts_what_the_published_program_predicts(where, tmp_path):
    content = checkpoint()
    if where == "in settings":  # later versions of fairseq keep options there
        content["cfg"], content["args"] = {"common": {"seed": 1}, "model": content["args"]}, None
    file = saved(tmp_path, content)
    source = {"folder": tmp_path, "loaded": torch.load(file, weights_only=False)}
    model = DifformerForConditionalGeneration.from_published(source.get(where, file)).double()
    tensors, draws = published_tensors(), torch.Generator().manual_seed(1)
    ids = torch.tensor([0, 7, 9, 4, 11, 2])
    for step, length in ((0, 3), (526, 7), (1999, 5)):
        state, previous = torch.randn(2, length, LATENT, generator=draws, dtype=torch.float64)
        expected, length_logits = published_prediction(tensors, ids, state, previous, step)
        read = model.encode(ids[None], None)
        told = model.process.told(torch.tensor([step]))
        keep = torch.ones(1, length, dtype=torch.bool)
        found = model.denoise(state[None], previous[None], told, keep, read)
        torch.testing.assert_close(found.embeddings[0], expected, rtol=1e-5, atol=1e-6)  # times are in float32
        torch.testing.assert_close(model(ids[None]).length_logits[0], length_logits)
        words = tensors["decoder.embed_tokens.weight"].double()
        torch.testing.assert_close(model.word_logits(found.embeddings)[0], found.embeddings[0] @ words.T)


def test_settings_are_those_of_the_checkpoint_and_words_come_with_it(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DifformerForConditionalGeneration.from_published(saved(tmp_path), dropout=0.0)
    config = model.config
    assert (config.vocab_size, config.hidden_size, config.latent_size) == (WORDS, SIZE, LATENT)
    assert (config.max_position_embeddings, config.noise_factor, config.dropout) == (POSITIONS, 4.0, 0.0)
    assert (config.bos_token_id, config.pad_token_id, config.eos_token_id) == (0, 1, 2)
    assert not model.training
    pieces = [f"w{number}@@" if number % 2 else f"w{number}" for number in range(WORDS - FIRST_WORDS)]
    (tmp_path / "dict.txt").write_text("".join(f"{piece} {100 - n}\n" for n, piece in enumerate(pieces)))
    tokenizer = fairseq_tokenizer(tmp_path / "dict.txt")
    for part in (model, tokenizer):
        part.save_pretrained(tmp_path / "ours")
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    batch = tokenizer(["w3@@ w4 w0", "w2"], padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == [[0, 7, 8, 4, 2], [0, 6, 2, 1, 1]]
    assert tokenizer.decode([0, 7, 8, 4, 2], skip_special_tokens=True) == "w3w4 w0"
    assert tokenizer.decode([0, 2, 1], skip_special_tokens=True) == ""
    assert len(tokenizer.batch_decode(model.generate(**batch, num_lengths=2), skip_special_tokens=True)) == 2


def test_heads_may_be_added():
    model = DifformerForConditionalGeneration.from_published(
        {"args": vars(published_options()), "model": published_tensors()}, multitoken={"ngram_size": 2}
    )
    assert model.heads is not None


def changed(tensors, **new):
    return {key: value for key, value in {**tensors, **new}.items() if value is not None}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"model": {"encoder.x": torch.zeros(1)}}, "no checkpoint"),
        ({"model": published_tensors()}, "num_attention_heads"),
        (checkpoint(self_cond=False), "self_cond"),
        (checkpoint(encoder_attention_heads=4), "heads"),
        (checkpoint(noise_schedule="edm"), "noise_schedule"),
        ({**checkpoint(), "model": changed(published_tensors(), extra=torch.zeros(2))}, "not in the model: extra"),
    ],
    ids=["foreign", "bare", "option", "heads", "schedule", "extra"],
)
def test_what_does_not_fit_is_refused(content, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        DifformerForConditionalGeneration.from_published(saved(tmp_path, content))


def test_a_curve_and_a_folder_without_a_checkpoint_are_refused(tmp_path):
    with pytest.raises(ValueError, match="too few positions for control points"):
        DifformerForConditionalGeneration.from_published(saved(tmp_path), curve={})
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="checkpoint_best"):
        DifformerForConditionalGeneration.from_published(tmp_path / "none")
    (tmp_path / "checkpoint_best.pt").write_bytes((tmp_path / "checkpoint_best.pt").read_bytes()[:500])
    with pytest.raises(ValueError, match="not whole"):
        DifformerForConditionalGeneration.from_published(tmp_path)


@pytest.mark.parametrize(
    ("text", "told"), [("dog 3\ncat x\n", "line 2"), ("dog 3\ndog 2\n", "already"), ("", "line 1")]
)
def test_a_dictionary_of_another_form_is_refused(text, told, tmp_path):
    (tmp_path / "dict.txt").write_text(text)
    with pytest.raises(ValueError, match=told):
        fairseq_tokenizer(tmp_path / "dict.txt")


def test_a_piece_that_is_there_already_gets_a_new_id_where_its_line_says_so(tmp_path):
    (tmp_path / "dict.txt").write_text("dog 3\n<pad> 5 #fairseq:overwrite\ncat\u2028s 2\nmouse 1\n", encoding="utf-8")
    tokenizer = fairseq_tokenizer(tmp_path / "dict.txt")
    assert tokenizer.convert_tokens_to_ids(["dog", "<pad>", "cat\u2028s", "mouse"]) == [4, 5, 6, 7]
