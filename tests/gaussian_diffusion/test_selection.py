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
from tests.gaussian_diffusion.models import make_difformer
from tests.tiny_backbones import VOCAB, make_backbone
from tests.tiny_seq2seq import EOS, PAD, make_pair_backbone, make_pair_model, pairs

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


def test_generate_takes_the_text_of_the_least_perplexity():
    diffusion, teacher = make_difformer(), make_pair_model("marian").eval()
    score = LikelihoodRescorer(teacher)
    output = diffusion.generate(
        **SOURCE, num_lengths=2, num_noises=2, selection="rescoring", rescorer=score, return_dict_in_generate=True
    )
    for row, candidates in enumerate(output.candidates):
        inputs = [part[row].expand(4, -1) for part in SOURCE.values()]
        best = candidates[score(candidates, *inputs).argmax()]
        assert torch.equal(output.sequences[row], best[: output.sequences.shape[1]])


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (make_backbone("gpt2").eval(), "GPT2LMHeadModel has no encoder"),
        (make_pair_backbone("marian").train(), "must be in evaluation mode"),
    ],
)
def test_a_model_that_cannot_score_is_refused(model, told):
    with pytest.raises(ValueError, match=told):
        LikelihoodRescorer(model)


def test_texts_of_another_vocabulary_or_beyond_the_positions_are_refused():
    score = LikelihoodRescorer(make_pair_backbone("marian").eval())
    with pytest.raises(ValueError, match="got 9999"):
        score(torch.tensor([[9999]] * 3), *SOURCE.values())
    with pytest.raises(ValueError, match="positions"):
        score(torch.full((3, 99), 5), *SOURCE.values())


def test_a_text_without_words_comes_last_where_a_model_cannot_read_it():
    torch.manual_seed(0)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    model = MBartForConditionalGeneration(MBartConfig(vocab_size=VOCAB, **sizes, **heads)).eval()  # begins with its end
    texts = torch.full((3, 4), 1)
    assert LikelihoodRescorer(model)(texts, *SOURCE.values()).tolist() == [-float("inf")] * 3
    texts[1, :2] = 5
    assert LikelihoodRescorer(model)(texts, *SOURCE.values()).isfinite().tolist() == [False, True, False]


def test_a_text_of_its_end_alone_is_empty_too():
    model = make_pair_backbone("marian").eval()
    texts = torch.tensor([[5, 6, EOS], [EOS, PAD, PAD], [EOS, EOS, PAD]])
    assert LikelihoodRescorer(model)(texts, *SOURCE.values()).isfinite().tolist() == [True, False, False]


def test_an_empty_text_comes_last_and_a_begin_token_does_not_count():
    model = make_pair_backbone("marian").double().eval()
    texts = pairs()["labels"].clamp(min=PAD)
    texts[1] = PAD
    plain = LikelihoodRescorer(model)(texts, *SOURCE.values())
    assert plain[1] == -float("inf") and plain[[0, 2]].isfinite().all()
    model.config.bos_token_id = int(texts[0, 0])
    without = LikelihoodRescorer(model)(texts, *SOURCE.values())
    kept = texts[0][texts[0] != PAD]
    logits = model(input_ids=SOURCE["input_ids"][:1], labels=kept[None]).logits[0].log_softmax(-1)
    known = logits.gather(1, kept[:, None])[1:]
    assert without[0].item() == pytest.approx(known.mean().item(), rel=1e-6)
    assert len(LikelihoodRescorer(model)(texts[:0], *(part[:0] for part in SOURCE.values()))) == 0


@given(st.lists(WORDS, min_size=2, max_size=6))
def test_it_is_the_reference_that_all_others_are_most_like(candidates):
    def score(number):
        others = [text for other, text in enumerate(candidates) if other != number]
        return sum(sentence_bleu(text, [candidates[number]]).score for text in others)

    scores = [score(number) for number in range(len(candidates))]
    assert scores[select_by_bleu(candidates)] == pytest.approx(max(scores), rel=1e-9)


def test_the_candidate_is_the_reference_and_not_the_hypothesis():
    candidates = ["the sat on sat", "mat cat the mat the mat", "on the sat mat a sat"]
    as_hypothesis = [
        sum(sentence_bleu(one, [other]).score for other in candidates if other != one) for one in candidates
    ]
    assert as_hypothesis.index(max(as_hypothesis)) == 0
    assert select_by_bleu(candidates) == 2


def test_an_empty_text_is_chosen_only_if_there_is_no_other():
    assert select_by_bleu(["", "", "a cat"]) == 2
    assert select_by_bleu(["", " "]) == 0
    with pytest.raises(ValueError, match="got none"):
        select_by_bleu([])
