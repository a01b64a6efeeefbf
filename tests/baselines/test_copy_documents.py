"""Documents as tokens of an encoder: where windows begin and end, and which of them a text has."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.baselines.copy_documents import encode_documents, join_pieces, longest_windows, windows_of
from hf_targets.data.tokenization import train_masking_tokenizer
from hf_targets.phrases.mining.forward_maximum_matching import ForwardMaximumMatching
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from tests.small_tokenizers import BPE, SENTENCES

READER = train_masking_tokenizer(SENTENCES, vocab_size=290, model_max_length=12)
TEXTS = ["the cat sat on the mat, (the flat cat) sat é 🙂", "a dog saw the cat; the dog  sat on a flat mat\n", "\n"]


def encoded(texts):
    """Return the model's tokens of documents, the pieces of all, and their edges."""
    documents = [one for text in texts for one in encode_documents([text], BPE, READER)]
    return [one.text for one in documents], *join_pieces(documents, READER)


@pytest.mark.parametrize("side", ["right", "left"])
def test_documents_that_were_read_alone_are_what_one_call_of_the_encoders_tokenizer_makes_of_all(side, monkeypatch):
    monkeypatch.setattr(READER, "padding_side", side)
    _, pieces, _ = encoded(TEXTS)
    told = {"return_overflowing_tokens": True, "return_special_tokens_mask": True}
    found = READER(TEXTS, truncation=True, max_length=12, padding=True, return_tensors="pt", **told)
    is_text = (found["attention_mask"] == 1) & (found["special_tokens_mask"] == 0)
    assert torch.equal(pieces["ids"], found["input_ids"]) and torch.equal(pieces["mask"], found["attention_mask"])
    assert torch.equal(pieces["places"], is_text.flatten().nonzero().flatten())
    owners = found["overflow_to_sample_mapping"][:, None].expand_as(is_text)[is_text]
    assert torch.equal(pieces["owners"], owners) and len(found["input_ids"]) > len(TEXTS)


def test_windows_start_and_end_where_tokens_of_the_encoder_do():
    texts, pieces, edges_of = encoded(TEXTS)
    for number, (text, edges) in enumerate(zip(texts, edges_of, strict=True)):
        own, before = READER(text.text, return_offsets_mapping=True), int((pieces["owners"] < number).sum())
        assert pieces["ids"].flatten()[pieces["places"]][pieces["owners"] == number].tolist() == own["input_ids"][1:-1]
        for token, span in zip(edges.tolist(), text.offsets.tolist(), strict=True):
            begin, end = (own["offset_mapping"][1:-1][max(at - before, 0)] for at in token[:2])
            assert token[0] < 0 or len({stop - len(text.text[at:stop].lstrip()) for at, stop in (begin, span)}) == 1
            assert token[1] < 0 or end[1] == span[1]
        assert (edges[:, :2] >= 0).sum() > len(own["input_ids"]) or number == 2  # a line end is no window


IDS = st.lists(st.integers(0, 4), min_size=1, max_size=14)  # 0 is a special token
DOCUMENTS = st.lists(st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.booleans()), min_size=1), max_size=4)


@given(ids=IDS, documents=DOCUMENTS, max_tokens=st.integers(2, 5))
def test_the_longest_windows_of_a_text_are_those_that_matching_with_all_windows_finds(ids, documents, max_tokens):
    def tokens(ids):
        return TokenizedText("", ids, np.zeros((len(ids), 2), np.int64), frozenset([0]))

    rows, start = [], 0
    for number, document in enumerate(documents):
        places = np.arange(start, start + len(document))
        begins, ends = (np.where([token[side] for token in document], places, -1) for side in (1, 2))
        edges, start = np.stack([begins, ends, places, places], axis=1), start + len(document)
        rows.append((str(number), tokens([token[0] for token in document]), edges))
    windows, text = windows_of(rows, max_tokens), tokens(ids)
    spans = ForwardMaximumMatching(windows).spans(text).tolist() if windows else []
    expected = [(first, stop, *windows[tuple(ids[first:stop])][0][:2]) for first, stop in spans]
    assert list(longest_windows(text, [row[1:] for row in rows], max_tokens)) == expected
