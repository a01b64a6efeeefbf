"""Drafts stop at the model's last position, and the tokens are those of plain decoding up to there."""

import pytest
import torch

from hf_targets import MultiTokenForCausalLM
from tests.tiny_models import make_backbone, token_ids

POSITIONS = 9


@pytest.fixture(scope="module", params=["gpt2", "opt", "gpt_neo", "llama"])
def model(request):
    backbone = make_backbone(request.param, max_position_embeddings=POSITIONS)
    return MultiTokenForCausalLM.from_base(backbone, ngram_size=4).eval()


@pytest.mark.parametrize("num_rows", [1, 2])
def test_drafted_words_are_the_plain_ones_for_every_prompt_length(model, num_rows):
    prompts = token_ids(num_rows, 3).repeat(1, POSITIONS // 3)  # the text repeats itself: there is much to look up
    greedy = {"do_sample": False, "pad_token_id": 0}
    for length in (4, *range(POSITIONS - 2, POSITIONS + 1)):
        prompt = prompts[:, :length]
        # the last token is never read: it needs no position
        whole = model.generate(prompt, max_length=POSITIONS + 1, eos_token_id=None, **greedy)
        ends = {**greedy, "max_new_tokens": 20, "eos_token_id": whole[:, -1].tolist()}
        plain = model.generate(prompt, **ends)
        for wanted in ({}, {"prompt_lookup_num_tokens": 4}, {"draft_branches": 3}):
            drafted = model.generate(prompt, draft_tokens=3, **ends, **wanted)
            assert torch.equal(drafted, plain), (length, wanted)
