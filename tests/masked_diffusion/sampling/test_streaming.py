"""A canvas printed as it fills, in a terminal and elsewhere."""

import io
import os
import shutil

import pytest
import torch

from hf_targets.masked_diffusion.sampling.streaming import CanvasStreamer
from tests.masked_diffusion.sampling.denoisers import MASK
from tests.small_tokenizers import SENTENCES, every_tokenizer


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Letters:
    """A tokenizer of single letters."""

    mask_token_id = MASK

    def decode(self, ids, skip_special_tokens):
        assert MASK not in ids
        assert skip_special_tokens
        return " ".join("abcdef"[id_] for id_ in ids)


def test_elsewhere_there_is_a_line_for_each_change():
    file = io.StringIO()
    streamer = CanvasStreamer(Letters(), row=1, file=file)
    for row in ([0, MASK, MASK, 3], [0, MASK, 2, 3], [0, MASK, 2, 3], [0, 1, 2, 3]):
        streamer.put(torch.tensor([[0] * 4, row]))
    streamer.end()
    assert file.getvalue() == "a _ _ d\na _ c d\na b c d\n"


def test_a_terminals_line_is_written_over_and_the_filled_row_stays_whole(monkeypatch):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((8, 20)))
    file = Terminal()
    streamer = CanvasStreamer(Letters(), mask_text="?", file=file)
    streamer.put(torch.tensor([[MASK, 0, MASK, MASK, MASK]]))
    streamer.put(torch.tensor([[3, 0, 1, 2, 5]]))
    streamer.end()
    assert file.getvalue() == "\r? a ? ?\rd a b c\r       \rd a b c f\n"


@every_tokenizer
def test_a_filled_row_prints_as_its_text(tokenizer):
    ids = tokenizer(SENTENCES[0], add_special_tokens=False)["input_ids"]
    file, mask = io.StringIO(), len(tokenizer)
    streamer = CanvasStreamer(tokenizer, mask_token_id=mask, file=file)
    streamer.put(torch.tensor([ids[:2] + [mask] * 2 + ids[4:]]))
    streamer.put(torch.tensor([ids]))
    half, whole = file.getvalue().splitlines()
    assert half.count("_") == 2
    assert whole == " ".join(tokenizer.decode(ids, skip_special_tokens=True).split())


def test_a_tokenizer_without_a_mask_needs_the_models():
    tokenizer = Letters()
    tokenizer.mask_token_id = None
    with pytest.raises(ValueError, match="mask_token_id"):
        CanvasStreamer(tokenizer)
