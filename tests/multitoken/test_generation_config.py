"""Settings of `generate` may stand in a generation configuration, which is saved with the model."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from hf_targets import MultiTokenForCausalLM
from hf_targets.multitoken.drafting.outputs import DraftedGenerationOutput
from tests.memory import realigned
from tests.tiny_models import make_backbone, make_drafting_model, token_ids

HOW = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0, "return_dict_in_generate": True}


def counts(model, *config, **wanted):
    output = model.generate(token_ids(1, 6), *config, **HOW, **wanted)
    if not isinstance(output, DraftedGenerationOutput):
        return None
    return output.num_forward_passes, output.num_drafted_tokens, output.sequences.tolist()


def test_the_call_is_before_its_configuration_and_that_before_the_models(tmp_path):
    model = copy.deepcopy(make_drafting_model("gpt2"))
    chain, tree, mixed = (
        counts(model, draft_tokens=2, **more) for more in ({}, {"draft_branches": 3}, {"ensemble_weight": 0.4})
    )
    assert None is not chain != tree is not None and chain != mixed != tree
    assert counts(model, GenerationConfig(draft_tokens=2, draft_branches=3)) == tree
    model.generation_config.draft_tokens = 2
    model.save_pretrained(tmp_path)
    again = realigned(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert counts(again) == counts(again, GenerationConfig(repetition_penalty=1.0)) == chain
    assert counts(again, GenerationConfig(ensemble_weight=0.4)) == mixed
    assert counts(again, GenerationConfig(ensemble_weight=0.4), ensemble_weight=0.0) == chain
    assert counts(again, draft_tokens=0) is None
    again.generation_config.draft_branches = 3
    assert counts(again) == tree and counts(again, draft_tokens=0) is None
    again.generation_config.draft_tokens = 9
    with pytest.raises(ValueError, match=r"draft_tokens must be in \[1, 3\].* got 9; give 0 to draft nothing"):
        counts(again)


@pytest.mark.parametrize("tokens", [2, "auto"])
@pytest.mark.parametrize("holder", ["assistant", "assisted"])
def test_an_assistant_writes_plainly_with_the_ensemble_of_its_own(tokens, holder):
    models = {name: copy.deepcopy(make_drafting_model("gpt2")) for name in ("assistant", "assisted")}
    assistant, seen = models["assistant"], []
    models[holder].generation_config.draft_tokens = tokens
    models["assisted"].generation_config.ensemble_weight = 0.4
    weigh = assistant._check_weight
    assistant._check_weight = lambda weight, *others: seen.append(weight) or weigh(weight, *others)
    call = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0, "ensemble_weight": 0.0, "draft_tokens": 0}
    expected = models["assisted"].generate(token_ids(1, 6), **call)
    assert torch.equal(models["assisted"].generate(token_ids(1, 6), assistant_model=assistant, **call), expected)
    assert seen and set(seen) == {None}


def test_heads_alone_are_saved_with_it(tmp_path):
    make_backbone("gpt2").save_pretrained(tmp_path / "base")
    model = MultiTokenForCausalLM.from_base(str(tmp_path / "base"), ngram_size=4)
    model.generation_config.draft_tokens = 2
    model.save_pretrained(tmp_path / "heads", heads_only=True)
    loaded = MultiTokenForCausalLM.from_pretrained(tmp_path / "heads")
    assert loaded.generation_config.draft_tokens == 2 and loaded.generation_config.pad_token_id is None
