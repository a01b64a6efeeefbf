"""What models with phrases owe beside the contract, over the families of backbones in `tests/tiny_models.py`."""

import pytest
import torch

from tests.tiny_models import (
    CACHED_FAMILIES,
    FAMILIES,
    make_dynamic_model,
    make_vocabulary,
    phrase_batch,
    phrase_ids,
)

families = pytest.mark.parametrize("family", FAMILIES)
cached_families = pytest.mark.parametrize("family", CACHED_FAMILIES)


@cached_families
def test_phrases_in_bfloat16_are_near_those_in_full_precision(family):
    model, batch, ids, vocabulary = make_dynamic_model(family), phrase_batch(), phrase_ids(), make_vocabulary()
    full, logits = model(**batch), model(ids, phrases=vocabulary).logits
    half = model.bfloat16()(**batch)
    assert half.loss.dtype == torch.float32
    for name in ("phrase", "token"):
        assert abs(half.loss_parts[name] / full.loss_parts[name] - 1) < 0.05
    halved = model(ids, phrases=vocabulary).logits
    assert halved.dtype == torch.bfloat16
    assert (halved.float() - logits).std() < 0.1 * logits.std()


@families
def test_no_position_sees_the_phrases_after_it(family):
    model, vocabulary, ids = make_dynamic_model(family), make_vocabulary(), phrase_ids(2, 16)
    changed = torch.cat([ids[:, :9], ids[:, 9:].flip(0, 1)], dim=1)
    assert not torch.equal(changed, ids)
    before, after = (model(given, phrases=vocabulary).logits[:, :9] for given in (ids, changed))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)
