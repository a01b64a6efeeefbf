"""A canvas that fills in: given tokens stay, each state fills masks alone, and the picture has a dot for each token."""

import re
from itertools import pairwise

import pytest
import torch

from demo.canvas import GAP, KEPT, MASK, NEW, Canvas
from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.masked_diffusion.rows import add_missing_tokens
from tests.masked_diffusion.models import make_mdlm
from tests.small_tokenizers import SENTENCES


@pytest.fixture(scope="module")
def canvas():
    tokenizer = add_missing_tokens(train_bpe_tokenizer(SENTENCES, vocab_size=300), padding=True)
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "pad_token_id", "mask_token_id")}
    return Canvas(make_mdlm("hidden", vocab_size=len(tokenizer), **ids), tokenizer, len(SENTENCES))


def test_a_canvas_has_the_given_tokens_and_masks_and_ends_without_a_mask(canvas):
    text = f"the {GAP} sat on{GAP}"
    states = canvas.fill(text, num_steps=6, seed=0)
    first = "".join(piece for piece, _ in states[0].tokens)
    assert first.startswith(f"the {GAP} sat on {GAP} {GAP}") and len(states) > 3
    assert {kind for _, kind in states[-1].tokens} <= {KEPT, NEW}
    for before, now in pairwise(states):
        changed = [was for was, one in zip(before.tokens, now.tokens, strict=True) if was[0] != one[0]]
        assert {kind for _, kind in changed} <= {MASK}
        assert [kind == NEW for _, kind in now.tokens] == [
            was == MASK != kind for (_, was), (_, kind) in zip(before.tokens, now.tokens, strict=True)
        ]


def test_the_curve_in_the_picture_goes_through_the_embedding_of_each_token(canvas):
    points = torch.randn(2, canvas.length * 2, canvas.model.config.hidden_size)
    lines, controls = canvas._drawn(points)
    curve = canvas.model.backbone.curve
    for line, control in zip(lines, controls, strict=True):
        through = curve.to_embeddings(control[None], canvas.length)[0]
        torch.testing.assert_close(line[:: (len(line) - 1) // (canvas.length - 1)], through, atol=1e-2, rtol=1e-4)
    picture = canvas.fill("the cat", num_steps=2, seed=0)[-1].picture
    assert len(re.findall("<circle", picture)) == canvas.length


def test_a_full_canvas_is_its_only_state_and_a_longer_text_is_told(canvas):
    full = "the" * (canvas.length - 1)
    assert len(canvas.fill(full, num_steps=4, seed=0)) == 1
    with pytest.raises(ValueError, match=f"room for {canvas.length - 1} tokens, got {canvas.length}"):
        canvas.fill(f"{full}the", num_steps=4, seed=0)


def test_signs_of_pages_and_of_tokenizers_in_a_text_are_text(canvas):
    state = canvas.fill("<b> é東", num_steps=1, seed=0)[0]
    assert "<b> é東" in "".join(text for text, _ in state.tokens) and "<b>" not in state.picture
    with pytest.raises(ValueError, match="room for"):
        canvas.fill(str(canvas.tokenizer.mask_token) * 3, num_steps=1, seed=0)
