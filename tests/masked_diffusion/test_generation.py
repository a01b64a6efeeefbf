"""`generate` of a real model: every sampler, infilling, prompts, long texts, and what is refused."""

import pytest
import torch
from transformers import GenerationConfig

from tests.masked_diffusion.models import CURVES, MASK, clean_ids, make_mdlm, masked_ids
from tests.masked_diffusion.sampling.denoisers import SAMPLERS

LENGTH = 16  # the model's max_position_embeddings
every_sampler = pytest.mark.parametrize("sampler", SAMPLERS)


def generate(model, *args, seed=0, sampler="ancestral", **options):
    generator = torch.Generator().manual_seed(seed)
    options = {"return_dict_in_generate": True, **SAMPLERS[sampler], **options}
    return model.generate(*args, sampler=sampler, generator=generator, **options)


@every_sampler
@pytest.mark.parametrize("kind", CURVES)
def test_masked_tokens_are_filled_and_all_others_stay(kind, sampler):
    ids = masked_ids(4, 10)
    mask = torch.ones_like(ids)
    mask[1, :3], mask[2, -2:] = 0, 0
    output = generate(make_mdlm(kind), ids, attention_mask=mask, sampler=sampler)
    free = (ids == MASK) & (mask == 1)
    assert torch.equal(output.sequences[~free], ids[~free])
    assert (output.sequences[free] != MASK).all()
    assert output.num_generated_tokens == int(free.sum())


@every_sampler
@pytest.mark.parametrize("kind", ["plain", "curve"])
def test_padding_on_the_left_changes_nothing_of_a_text(sampler, kind):
    model, prompt = make_mdlm(kind).double(), clean_ids(1, 4)
    padded = torch.cat([torch.full((1, 3), 7), prompt], dim=1)
    mask = torch.tensor([[0] * 3 + [1] * 4])
    alone = generate(model, prompt, max_length=9, sampler=sampler)
    with_padding = generate(model, padded, attention_mask=mask, max_length=12, sampler=sampler)
    assert torch.equal(with_padding.sequences[:, 3:], alone.sequences)
    assert torch.equal(with_padding.sequences[:, :7], padded)


def test_without_ids_there_is_one_text_as_long_as_in_training():
    ids = make_mdlm().generate(num_steps=2)
    assert ids.shape == (1, LENGTH)
    assert ((ids >= 0) & (ids < MASK)).all()
    for given in ({"max_length": 5}, {"max_new_tokens": 5}):
        assert make_mdlm().generate(batch_size=3, num_steps=2, **given).shape == (3, 5)


def test_new_tokens_are_counted_without_the_prompt_and_its_padding():
    prompt, mask = clean_ids(2, 4), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    found = generate(make_mdlm(), prompt, attention_mask=mask, max_new_tokens=5, do_sample=None).sequences
    assert torch.equal(found, generate(make_mdlm(), prompt, attention_mask=mask, max_length=9).sequences)


def test_dropout_is_never_applied_and_the_mode_stays():
    model = make_mdlm(dropout=0.5)
    expected = generate(model, batch_size=2).sequences
    model.train()
    assert torch.equal(generate(model, batch_size=2).sequences, expected)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_any_precision_generate(dtype):
    model = make_mdlm().to(dtype)
    for sampler in SAMPLERS:
        assert (generate(model, batch_size=2, sampler=sampler).sequences < MASK).all()


IDS = torch.tensor([[1, MASK, 2]])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch_size": 2, "input_ids": IDS}, "batch_size"),
        ({"attention_mask": torch.ones(1, 3)}, "attention_mask"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_length": 17}, "stride"),
        ({"sampler": "first_hitting", "num_steps": 3}, "num_steps"),
        ({"max_new_tokens": 3, "max_length": 6}, "max_new_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"do_sample": False}, "got do_sample; give temperature=0"),
        ({"num_return_sequences": 2, "generation_config": GenerationConfig()}, "num_return_sequences"),
    ],
)
def test_misuse_is_refused_before_the_network_is_asked(options, word):
    model = make_mdlm()
    model.log_probabilities = lambda *args, **kwargs: pytest.fail("asked")
    with pytest.raises(ValueError, match=word):
        model.generate(**options)
