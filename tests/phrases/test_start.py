"""New phrases in front of a trained model: they begin as their tokens, and a prior sets how many are written."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from hf_targets import DynamicVocabConfig, DynamicVocabForCausalLM
from hf_targets.phrases.encoder import START_BIAS, TOKEN_BIAS, first_layers
from tests.memory import realigned
from tests.phrases.models import PHRASES, generate, make_phrase_model
from tests.tiny_models import (
    CONFIGS,
    VOCAB,
    left_padded,
    make_backbone,
    make_dynamic_model,
    make_vocabulary,
    phrase_batch,
    phrase_ids,
)
from tests.tiny_models import PHRASES as FOUR

ENCODERS = {
    "copy": {},
    "first layers": {"phrase_encoder_layers": 1},
    "mean": {"phrase_encoder_kind": "mean"},
    "untied": {"tie_phrase_embeddings": False},
    "mean of the paper": {"phrase_encoder_kind": "mean", "phrase_start": "encoder"},
}


# an embedding that is tied serves both sides, and Reformer's output embedding is wider than the other
@pytest.mark.parametrize(
    ("family", "kind"),
    [(name, kind) for kind in ("copy", "mean", "untied") for name in CONFIGS if kind == "untied" or name != "reformer"],
)
def test_an_untrained_phrase_is_scored_as_its_first_token_less_a_bias_and_read_as_its_last(family, kind):
    model = DynamicVocabForCausalLM.from_base(make_backbone(family), **ENCODERS[kind]).eval()
    ids, vocabulary = phrase_ids(), make_vocabulary()
    logits = model(ids, phrases=vocabulary).logits
    for slot, phrase in enumerate(FOUR):
        expected = logits[..., phrase[0]] + START_BIAS + TOKEN_BIAS * (len(phrase) - 1)
        torch.testing.assert_close(logits[..., VOCAB + slot], expected, rtol=1e-4, atol=1e-4)
    last = torch.tensor([*range(VOCAB), *(phrase[-1] for phrase in FOUR)])
    torch.testing.assert_close(model(last[ids]).logits, logits[..., :VOCAB], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ENCODERS)
def test_every_kind_of_encoder_learns_phrases_and_is_saved_with_them(kind, tmp_path):
    torch.manual_seed(0)
    model = DynamicVocabForCausalLM.from_base(make_backbone("llama"), **ENCODERS[kind])
    model.backbone.requires_grad_(False)
    batch, vocabulary, ids = phrase_batch(), make_vocabulary(), phrase_ids()
    optimizer = torch.optim.Adam(model.phrase_encoder.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        output = model.train()(**batch)
        output.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(output.loss_parts["phrase"]))
    assert losses[-1] < 0.9 * losses[0]
    model.save_pretrained(tmp_path)
    again, model = realigned(DynamicVocabForCausalLM.from_pretrained(tmp_path)), realigned(model.eval())
    assert torch.equal(again(ids, phrases=vocabulary).logits, model(ids, phrases=vocabulary).logits)
    with torch.no_grad():  # cached
        before = model(ids, phrases=vocabulary).logits
        model.get_input_embeddings().weight[FOUR[0][-1]] += 1.0
        changed = model(ids, phrases=vocabulary).logits
        assert torch.equal(changed, copy.deepcopy(model)(ids, phrases=vocabulary).logits)
    assert not torch.equal(changed, before)


def test_a_mean_is_of_the_embeddings_of_a_phrase_normalised():
    model, windows = make_dynamic_model("llama", phrase_encoder_kind="mean"), torch.tensor([[1, 2, 3]])
    embeds, encoder = model.get_input_embeddings()(windows) / 9, model.phrase_encoder
    means = torch.stack([embeds[0, :length].mean(dim=0) for length in (2, 3)])
    expected = encoder.input_projection(torch.nn.functional.layer_norm(means, means.shape[-1:]))
    torch.testing.assert_close(encoder(windows, torch.tensor([[0, 2], [0, 3]]), embeds)[0], expected)


@pytest.mark.parametrize(("family", "norm"), [("gpt2", "ln_f"), ("qwen3", "norm")])
def test_first_layers_have_the_states_of_the_whole_model_between_its_layers(family, norm):
    base, ids = make_backbone(family).eval().double().base_model, phrase_ids() % VOCAB
    states = base(ids, output_hidden_states=True).hidden_states[1]
    cut = first_layers(base, 1)
    assert not cut.training and torch.equal(cut(ids)[0], getattr(base, norm)(states))


@pytest.mark.parametrize("how", [{}, {"do_sample": True}, {"num_beams": 2}, {"indexed": True}])
def test_a_prior_is_added_to_the_logits_of_phrases_alone(how):
    model, (ids, mask) = make_phrase_model(), left_padded()
    if how.pop("indexed", False):
        how["phrase_index"], how["num_neighbours"] = model.index_phrases(PHRASES), len(PHRASES)
    given = {"attention_mask": mask, "phrases": PHRASES, "max_new_tokens": 3, **how}
    wanted = {"output_logits": True, "return_dict_in_generate": True}
    plain = generate(model, ids, **given, **wanted).logits[0]
    prior = {"phrase_bias": -2.5, "phrase_length_correction": 0.5}
    lengths = torch.tensor([len(PHRASES.token_ids(phrase)) for phrase in PHRASES])
    for way in (prior, {"generation_config": GenerationConfig(**prior, **wanted)}):
        ours = generate(model, ids, **given, **wanted, **way).logits[0]
        assert torch.equal(ours[:, :VOCAB], plain[:, :VOCAB])
        added = (0.5 * (lengths - 1) - 2.5).expand(len(ours), -1)
        torch.testing.assert_close(ours[:, VOCAB:] - plain[:, VOCAB:], added, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="phrase_bias"):
        generate(model, ids, **given, phrase_bias=float("nan"))


def test_a_start_or_an_encoder_that_there_is_not_is_refused():
    for config in ({"phrase_encoder_layers": 0}, {"phrase_encoder_kind": "mean", "phrase_encoder_layers": 1}):
        with pytest.raises(ValueError, match="phrase_encoder_layers"):
            DynamicVocabConfig(**config)
    for wrong in (9, "1"):
        with pytest.raises(ValueError, match="at most 2"):
            DynamicVocabForCausalLM.from_base(make_backbone("llama"), phrase_encoder_layers=wrong)
