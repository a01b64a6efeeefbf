"""Candidates chosen as the one most like the others, or by a model that reads from left to right."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu import sentence_bleu
from transformers import MBartConfig, MBartForConditionalGeneration

from hf_targets import LikelihoodRescorer
from hf_targets.gaussian_diffusion import selection
from hf_targets.gaussian_diffusion.selection import select_by_bleu
from tests.tiny_backbones import VOCAB
from tests.tiny_seq2seq import EOS, PAD, make_pair_backbone, pairs

SOURCE = {name: pairs()[name] for name in ("input_ids", "attention_mask")}
WORDS = st.lists(st.sampled_from(["a", "the", "cat", "mat", "sat"]), min_size=1, max_size=7).map(" ".join)


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
def test_scores_are_mean_log_likelihoods_of_each_text_alone(family, monkeypatch):
    model = make_pair_backbone(family).double().eval()
    texts = pairs()["labels"].masked_fill(pairs()["labels"] < 0, PAD)
    score = LikelihoodRescorer(model)
    found = score(texts, *SOURCE.values())
    for row, text in enumerate(texts):
        kept, source = text[text != PAD][None], SOURCE["input_ids"][row][SOURCE["attention_mask"][row] == 1][None]
        assert found[row].item() == pytest.approx(-model(input_ids=source, labels=kept).loss.item(), rel=1e-5)
    monkeypatch.setattr(selection, "_MOST_LOGITS", 1)
    torch.testing.assert_close(score(texts, *SOURCE.values()), found)


def test_a_model_in_training_and_texts_of_another_vocabulary_are_refused():
    model, texts = make_pair_backbone("marian"), torch.full((3, 1), 9999)
    with pytest.raises(ValueError, match="evaluation mode"):
        LikelihoodRescorer(model.train())
    with pytest.raises(ValueError, match="got 9999"):
        LikelihoodRescorer(model.eval())(texts, *SOURCE.values())


def test_a_text_without_words_comes_last_where_a_model_cannot_read_it():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = MBartForConditionalGeneration(MBartConfig(vocab_size=VOCAB, **sizes, **heads)).eval()  # begins with its end
    texts = torch.full((3, 4), 1)
    assert LikelihoodRescorer(model)(texts, *SOURCE.values()).tolist() == [-float("inf")] * 3
    texts[1, :2] = 5
    assert LikelihoodRescorer(model)(texts, *SOURCE.values()).isfinite().tolist() == [False, True, False]


def test_an_empty_text_comes_last_and_a_begin_token_does_not_count():
    model = make_pair_backbone("marian").double().eval()
    empty = torch.tensor([[5, 6, EOS], [PAD, PAD, PAD], [EOS, EOS, PAD]])
    assert LikelihoodRescorer(model)(empty, *SOURCE.values()).isfinite().tolist() == [True, False, False]
    texts = pairs()["labels"].clamp(min=PAD)
    model.config.bos_token_id = int(texts[0, 0])
    without = LikelihoodRescorer(model)(texts, *SOURCE.values())
    kept = texts[0][texts[0] != PAD]
    logits = model(input_ids=SOURCE["input_ids"][:1], labels=kept[None]).logits[0].log_softmax(-1)
    known = logits.gather(1, kept[:, None])[1:]
    assert without[0].item() == pytest.approx(known.mean().item(), rel=1e-6)


@given(st.lists(WORDS, min_size=2, max_size=6))
def test_it_is_the_reference_that_all_others_are_most_like(candidates):
    def score(number):
        others = [text for other, text in enumerate(candidates) if other != number]
        return sum(sentence_bleu(text, [candidates[number]]).score for text in others)

    scores = [score(number) for number in range(len(candidates))]
    assert scores[select_by_bleu(candidates)] == pytest.approx(max(scores), rel=1e-9)


def test_an_empty_text_is_chosen_only_if_there_is_no_other():
    assert select_by_bleu(["", "", "a cat"]) == 2
    assert select_by_bleu(["", " "]) == 0
    with pytest.raises(ValueError, match="got none"):
        select_by_bleu([])
