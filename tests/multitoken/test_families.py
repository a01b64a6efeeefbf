"""What models with heads owe beside the contract, over the families of backbones in `tests/tiny_models.py`."""

import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig

from hf_targets import MultiTokenForCausalLM
from tests.tiny_backbones import pad_rows
from tests.tiny_models import (
    CACHED_FAMILIES,
    TARGETS,
    VOCAB,
    make_model,
    token_ids,
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_rows_have_the_scores_of_each_row_alone(target, side):
    model, weights = make_model("llama", target=target), [0.0, 0.3]
    rows = [token_ids(length, seed=length) for length in (7, 12)]
    ids = pad_rows(rows, side, 0)
    mask = pad_rows([torch.ones_like(row) for row in rows], side, 0)
    positions, labels = (mask.cumsum(1) - 1).clamp(min=0), ids.masked_fill(mask == 0, -100)
    together = model(ids, attention_mask=mask, position_ids=positions, labels=labels, nll_weights=weights).nlls
    for found, row in zip(together, rows, strict=True):
        alone = model(row[None], labels=row[None], nll_weights=weights).nlls[0]
        torch.testing.assert_close(found, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "reformer"])
@pytest.mark.usefixtures("clear_choices")
def test_generation_takes_the_best_word_of_the_forward_pass(family, weight=0.4):
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


@pytest.mark.parametrize("family", CACHED_FAMILIES)
@pytest.mark.usefixtures("clear_choices")
def test_left_padded_rows_generate_what_each_does_alone(family):
    model = make_model(family).double()
    options = {"max_new_tokens": 5, "do_sample": False, "num_beams": 3, "ensemble_weight": 0.4}
    rows = [token_ids(1, length, seed=length) for length in (4, 7)]
    alone = [model.generate(row, attention_mask=torch.ones_like(row), **options)[0, row.shape[1] :] for row in rows]
    ids, mask = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, 7 - row.shape[1] :], mask[number, 7 - row.shape[1] :] = row[0], 1
    together = model.generate(ids, attention_mask=mask, pad_token_id=0, **options)[:, 7:]
    for number, expected in enumerate(alone):
        assert together[number, : len(expected)].tolist() == expected.tolist()


@pytest.mark.parametrize(("family", "target"), [("llama", "difference"), ("opt", "conditional")])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.usefixtures("clear_choices")
def test_drafts_begin_from_embeddings(family, target, rows):
    model, ids = make_model(family, target=target).double(), token_ids(rows, 5)
    embeds = model.get_input_embeddings()(ids)
    wanted = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    drafted = model.generate(inputs_embeds=embeds, draft_tokens=2, **wanted)
    assert torch.equal(drafted, model.generate(inputs_embeds=embeds, **wanted))
