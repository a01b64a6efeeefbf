"""Phrases scored by their tokens: as if each was read after the text, whatever was read before."""

import pytest
import torch

from hf_targets.phrases.decoding.token_scores import ScoredByTokens
from hf_targets.phrases.model import DynamicVocabForCausalLM
from tests.phrases.models import make_phrase_model, vocabulary_of
from tests.tiny_models import VOCAB, make_backbone

TEXTS = [7, 8, 9], [7, 8, 9, 1], [7, 8], [5, 6], [5, 6, 1, 2], [5, 6, 1, 2, 3, 4]


@torch.no_grad()
def test_the_score_of_a_phrase_is_that_of_its_tokens_read_one_by_one():
    backbone = make_phrase_model().backbone
    firsts = sorted({int(backbone(torch.tensor([text])).logits[0, -1].argmax()) for text in TEXTS})
    phrases = [[first, *others] for first in firsts for others in ([2], [2, 6], [3], [3, 1])]
    score = ScoredByTokens(backbone, vocabulary_of(*phrases), correction=0.5)
    passes: list[tuple] = []
    for text in TEXTS:
        scores = torch.zeros(1, VOCAB + len(phrases), dtype=torch.float64)
        scores[0, 11] = -torch.inf
        first, expected = backbone(torch.tensor([text])).logits[0, -1].log_softmax(dim=-1).max(dim=-1)[1], {}
        for slot, tokens in enumerate([*([id_] for id_ in range(VOCAB)), *phrases]):
            log_p = backbone(torch.tensor([text + tokens])).logits[0, len(text) - 1 :].log_softmax(dim=-1)
            total = sum(float(log_p[i, token]) for i, token in enumerate(tokens)) + 0.5 * (len(tokens) - 1)
            expected[slot] = total if len(tokens) == 1 or tokens[0] == first else -torch.inf
        expected[11] = -torch.inf
        with backbone.register_forward_pre_hook(lambda *call: passes.append(call)):
            found = score(torch.tensor([text]), scores)
        assert len(passes) == 1 + 2  # the text, and each phrase that begins no longer one
        passes.clear()
        torch.testing.assert_close(found[0], torch.tensor([*expected.values()], dtype=found.dtype), atol=1e-5, rtol=0)
    score.vocabulary.add_token_ids([[first, 2, 6, 1] for first in firsts])  # after the scores were made
    torch.testing.assert_close(score(torch.tensor([text]), scores), found)
    with pytest.raises(ValueError, match="rows"):
        score(torch.ones(2, 3, dtype=torch.long), scores)


def test_phrases_that_the_model_would_write_anyway_leave_the_text_as_it_is():
    base, prompt = make_backbone("llama").double(), torch.tensor([[7, 8, 9]])
    base.model.norm.weight.data *= 100  # so that it is sure of each token
    model, length = DynamicVocabForCausalLM.from_base(base).eval(), {"do_sample": False, "eos_token_id": None}
    plain = base.generate(prompt, max_new_tokens=12, **length)[0].tolist()
    pieces = [plain[start : start + 3] for start in range(3, 13)]
    vocabulary = vocabulary_of(*pieces, *([first, second, (last + 1) % 40] for first, second, last in pieces))
    for given, most in (({}, 8), ({"correction": -50.0}, 12)):
        own = [ScoredByTokens(base, vocabulary, **given)]
        limit = {"max_new_static_tokens": 12, **length}
        ids = model.generate(prompt, phrases=vocabulary, logits_processor=own, **limit)[0, 3:]
        assert vocabulary.expand(ids)[:12] == plain[3:] and len(ids) <= most
    assert len(ids) == 12
