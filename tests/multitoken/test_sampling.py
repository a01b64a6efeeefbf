"""Sampling with drafts: the distribution is the model's own, whatever the drafts are worth."""

from collections import Counter

import pytest
import torch
from scipy import stats

from hf_targets import draft
from tests.tiny_models import make_drafting_model, token_ids

NUM_NEW = 3
SAMPLED = {"do_sample": True, "top_k": 3, "temperature": 1.5, "max_new_tokens": NUM_NEW, "eos_token_id": None}


def exact_distribution(model, prompt, weight):
    """Probabilities of all texts of three new tokens, from the model's processed logits one token after another."""
    probabilities = {(): 1.0}
    for _ in range(NUM_NEW):
        longer = {}
        for tokens, probability in probabilities.items():
            text = torch.cat([prompt, torch.tensor([tokens], dtype=torch.long)], dim=1)
            logits = model(text, ensemble_weight=weight).logits[0, -1].double() / SAMPLED["temperature"]
            best, at = logits.topk(SAMPLED["top_k"])
            for token, share in zip(at.tolist(), best.softmax(dim=0).tolist(), strict=True):
                longer[(*tokens, token)] = probability * share
        probabilities = longer
    return probabilities


def check(draws, expected):
    """Assert by a chi-square test that the draws are of the distribution; rare texts count together."""
    counts = Counter(draws)
    assert counts.keys() <= expected.keys()
    total = sum(counts.values())
    common = [tokens for tokens in expected if expected[tokens] * total >= 5]
    observed = [counts[tokens] for tokens in common]
    wanted = [expected[tokens] * total for tokens in common]
    rest = total - sum(wanted)
    if rest > 1e-6 * total:
        observed.append(total - sum(observed))
        wanted.append(rest)
    assert stats.chisquare(observed, wanted, sum_check=False).pvalue > 1e-3


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"draft_branches": 3, "draft_nodes": 4},
        {"prompt_lookup_num_tokens": 2},
        {"ensemble_weight": 0.4},
        {"custom_generate": draft()},
    ],
    ids=["chain", "tree", "lookup", "ensemble", "without heads"],
)
def test_rows_of_a_batch_are_samples_of_the_model(how):
    model = make_drafting_model("gpt2")
    prompt = torch.cat([token_ids(1, 4), token_ids(1, 4)], dim=1)  # with something to look up
    torch.manual_seed(0)
    draws = []
    for _ in range(4):
        writer, heads = (model.backbone, {}) if "custom_generate" in how else (model, {"draft_tokens": 2})
        texts = writer.generate(prompt.expand(500, -1), **heads, **how, **SAMPLED)
        draws += [tuple(tokens) for tokens in texts[:, prompt.shape[1] :].tolist()]
    check(draws, exact_distribution(model, prompt, how.get("ensemble_weight")))
