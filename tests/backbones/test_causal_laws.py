"""What our causal models owe beside the contract, over the families of backbones in `tests/tiny_models.py`."""

import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig

from hf_targets import MultiTokenForCausalLM
from tests.memory import realigned
from tests.tiny_models import (
    ATTENTIONS,
    CACHED_FAMILIES,
    FAMILIES,
    TARGETS,
    VOCAB,
    make_any,
    make_backbone,
    make_dynamic_model,
    make_model,
    make_vocabulary,
    phrase_ids,
    token_ids,
    training_inputs,
)

families = pytest.mark.parametrize("family", FAMILIES)
cached_families = pytest.mark.parametrize("family", CACHED_FAMILIES)
targets = pytest.mark.parametrize("target", TARGETS)


@pytest.mark.parametrize(("family", "attention"), ATTENTIONS)
def test_without_an_ensemble_the_logits_are_the_backbones_bit_for_bit(family, attention, tmp_path):
    base = make_backbone(family)
    base.save_pretrained(tmp_path)
    ids = token_ids(2, 16)
    mask = torch.ones_like(ids)
    mask[0, 10:] = 0
    bare = realigned(AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attention))
    model = realigned(MultiTokenForCausalLM.from_base(tmp_path, backbone_kwargs={"attn_implementation": attention}))
    expected = bare(input_ids=ids, attention_mask=mask).logits
    for weight in (None, 0.0):
        assert torch.equal(model(input_ids=ids, attention_mask=mask, ensemble_weight=weight).logits, expected)
    model.save_pretrained(tmp_path / "wrapped")
    again = realigned(AutoModelForCausalLM.from_pretrained(tmp_path / "wrapped", attn_implementation=attention))
    assert torch.equal(again(input_ids=ids, attention_mask=mask).logits, expected)


@cached_families
@targets
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(family, target, side):
    model = make_model(family, target=target)
    rows = [token_ids(1, length, seed=length) for length in (7, 12)]
    alone = [model(row, labels=row, ensemble_weight=0.3) for row in rows]
    ids, mask = torch.zeros(2, 12, dtype=torch.long), torch.zeros(2, 12, dtype=torch.long)
    for number, row in enumerate(rows):
        place = slice(12 - row.shape[1], None) if side == "left" else slice(row.shape[1])
        ids[number, place], mask[number, place] = row[0], 1
    together = model(
        ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        labels=ids.masked_fill(mask == 0, -100),
        ensemble_weight=0.3,
        nll_weights=[0.0, 0.3],
    )
    for number, (row, single) in enumerate(zip(rows, alone, strict=True)):
        torch.testing.assert_close(together.logits[number][mask[number] == 1], single.logits[0], rtol=1e-4, atol=1e-4)
        nlls = model(row, labels=row, nll_weights=[0.0, 0.3]).nlls[0]
        torch.testing.assert_close(together.nlls[number], nlls, rtol=1e-4, atol=1e-4)
    counts = [row.shape[1] - 1 for row in rows]
    expected = sum(single.loss * count for single, count in zip(alone, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(together.loss, expected, rtol=1e-4, atol=1e-4)


@cached_families
@targets
def test_an_ensemble_in_bfloat16_is_near_full_precision(family, target):
    model, ids = make_model(family, target=target), token_ids(2, 12)
    full = model(ids, labels=ids, ensemble_weight=0.2)
    half = model.bfloat16()(ids, labels=ids, ensemble_weight=0.2)
    assert half.logits.dtype == torch.bfloat16 and half.loss.dtype == torch.float32
    assert abs(half.loss.item() / full.loss.item() - 1) < 0.05


@families
def test_a_saved_dynamic_vocabulary_scores_phrases_as_before_bit_for_bit(family, tmp_path):
    model, ids, vocabulary = make_dynamic_model(family), phrase_ids(), make_vocabulary()
    model.save_pretrained(tmp_path)
    again = realigned(AutoModelForCausalLM.from_pretrained(tmp_path))
    expected, got = (one(ids, labels=ids, phrases=vocabulary) for one in (model, again))
    assert torch.equal(got.logits, expected.logits)
    assert torch.equal(got.loss, expected.loss)


@cached_families
def test_phrases_in_bfloat16_are_near_those_in_full_precision(family):
    model, batch, ids, vocabulary = (
        make_any(family, "phrases"),
        training_inputs("phrases"),
        phrase_ids(),
        make_vocabulary(),
    )
    full, logits = model(**batch), model(ids, phrases=vocabulary).logits
    half = model.bfloat16()(**batch)
    assert half.loss.dtype == torch.float32
    for name in ("phrase", "token"):
        assert abs(half.loss_parts[name] / full.loss_parts[name] - 1) < 0.05
    halved = model(ids, phrases=vocabulary).logits
    assert halved.dtype == torch.bfloat16
    assert (halved.float() - logits).std() < 0.1 * logits.std()


@families
@targets
def test_no_position_sees_what_comes_after_it(family, target):
    model = make_model(family, target=target)
    ids = token_ids(1, 16)
    changed = ids.clone()
    changed[0, 9:] = (ids[0, 9:] + 7) % VOCAB
    for weight in (0.0, 0.5):
        torch.manual_seed(0)
        before = model(ids, ensemble_weight=weight).logits[0, :9]
        torch.manual_seed(0)
        after = model(changed, ensemble_weight=weight).logits[0, :9]
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@families
def test_no_position_sees_the_phrases_after_it(family):
    model, vocabulary, ids = make_dynamic_model(family), make_vocabulary(), phrase_ids(2, 16)
    changed = torch.cat([ids[:, :9], ids[:, 9:].flip(0, 1)], dim=1)
    assert not torch.equal(changed, ids)
    before, after = (model(given, phrases=vocabulary).logits[:, :9] for given in (ids, changed))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@cached_families
@pytest.mark.usefixtures("clear_choices")
def test_cached_generation_is_uncached_generation(family):
    model = make_model(family).double()
    prompt = {"input_ids": token_ids(1, 6), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    cached = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert torch.equal(cached, model.generate(**prompt, max_new_tokens=8, do_sample=False, use_cache=False))
    bare = model.backbone.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert torch.equal(cached, bare)


@families
@pytest.mark.parametrize("weight", [0.0, 0.4])
@pytest.mark.usefixtures("clear_choices")
def test_generation_takes_the_best_word_of_the_forward_pass(family, weight):
    model = make_model(family).double()
    ids = token_ids(1, 6)
    generated = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, ensemble_weight=weight
    )
    for _ in range(generated.shape[1] - 6):
        torch.manual_seed(0)
        best = model(ids, ensemble_weight=weight).logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, best], dim=1)
    assert torch.equal(generated, ids)


def test_a_stateful_backbone_generates_what_it_would_alone():
    config = MambaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4, bos_token_id=0, eos_token_id=0
    )
    backbone = AutoModelForCausalLM.from_config(config).eval()
    prompt = {"input_ids": token_ids(1, 6), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    expected = backbone.generate(**prompt, max_new_tokens=5, do_sample=False)
    model = MultiTokenForCausalLM.from_base(backbone).eval()
    assert torch.equal(model.generate(**prompt, max_new_tokens=5, do_sample=False), expected)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_static_cache_generates_the_same(family):
    model = make_model(family).double()
    prompt = {"input_ids": token_ids(1, 6), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    options = {"max_new_tokens": 4, "do_sample": False, "disable_compile": True}
    static = model.generate(**prompt, **options, cache_implementation="static")
    assert torch.equal(static, model.generate(**prompt, **options))


@cached_families
@pytest.mark.parametrize("weight", [0.0, 0.4])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.usefixtures("clear_choices")
def test_left_padded_rows_generate_what_each_does_alone(family, weight, beams):
    model = make_model(family).double()
    options = {"max_new_tokens": 5, "do_sample": False, "num_beams": beams, "ensemble_weight": weight}
    rows = [token_ids(1, length, seed=length) for length in (4, 7)]
    alone = [model.generate(row, attention_mask=torch.ones_like(row), **options)[0, row.shape[1] :] for row in rows]
    ids, mask = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, 7 - row.shape[1] :], mask[number, 7 - row.shape[1] :] = row[0], 1
    together = model.generate(ids, attention_mask=mask, pad_token_id=0, **options)[:, 7:]
    for number, expected in enumerate(alone):
        assert together[number, : len(expected)].tolist() == expected.tolist()


@families
@pytest.mark.parametrize("kind", ["conditional", "phrases"])
def test_a_loaded_configuration_is_that_of_its_parts(family, kind, tmp_path):
    make_any(family, kind).save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config.backbone is again.backbone.config
    assert kind != "phrases" or again.config.phrase_encoder is again.phrase_encoder.transformer.config


def test_an_ensemble_weight_is_in_its_range():
    with pytest.raises(ValueError, match=r"in \[0, 1\], got 1.5"):
        make_model("gpt2")(token_ids(2, 8), ensemble_weight=1.5)
