"""The LSTM that translates: what its decoder reads, and that it learns from the source."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_targets.cosine.negative_direction import softmax_inputs
from lab.lstm_translation import LstmForTranslation, LstmTranslationConfig
from tests.tiny_seq2seq import EOS, PAD, pairs

SIZES = {"vocab_size": 64, "embedding_size": 16, "hidden_size": 24, "num_hidden_layers": 2}
IDS = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return LstmForTranslation(LstmTranslationConfig(**SIZES, **IDS)).eval()


def test_padding_changes_nothing_and_a_step_does_not_see_its_own_word(model):
    batch = pairs()
    ids, keep = batch["input_ids"][1:2], batch["attention_mask"][1:2].bool()
    alone = model(ids[keep][None], labels=batch["labels"][1:2]).logits
    together = model(**batch).logits[1:2]
    seen = batch["labels"][1] != -100
    torch.testing.assert_close(together[:, seen], alone[:, seen])
    changed = batch["labels"].clone()
    changed[1, 2] = 9
    torch.testing.assert_close(model(**{**batch, "labels": changed}).logits[1, :3], together[0, :3])


def test_it_learns_from_the_source_and_writes_it_with_beams_after_it_is_saved(model, tmp_path):
    sources = torch.randint(4, 20, (16, 3), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": sources, "labels": torch.cat([sources.flip(1), torch.full((16, 1), EOS)], dim=1)}
    model.encoder.embed_tokens.weight.data.mul_(2)  # as 16 is a small width
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(100):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        assert all(weight.grad is not None for weight in model.parameters())
        optimizer.step()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    found = loaded.generate(input_ids=sources, num_beams=2, max_new_tokens=4, do_sample=False)
    assert (found[:, 1:] == batch["labels"]).float().mean() > 0.9
    assert loaded.lm_head.weight is loaded.decoder.embed_tokens.weight
    states = softmax_inputs(loaded, [batch], 99)
    torch.testing.assert_close(loaded.lm_head(states).view(16, 4, -1), loaded(**batch).logits)
