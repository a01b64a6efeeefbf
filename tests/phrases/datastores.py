"""A small datastore of phrases: documents, a model, an encoder, and what its builder leaves."""

from functools import partial

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

from hf_targets import DynamicVocabForCausalLM, load_corpus, train_bpe_tokenizer
from hf_targets.phrases.datastore_builder import PhraseDatastoreBuilder
from tests.retrieval.letter_encoder import LetterEncoder

MINED = {"min_count": 3, "max_tokens": 6, "vocab_size": 400}
SIZES = {"passage_words": 30, "rows_per_shard": 40}


def documents(count=120):
    return load_corpus("documentation:topics")["train"].take(count)


def save_model(folder):
    tokenizer = train_bpe_tokenizer(documents()["text"][:], 400)
    config = GPT2Config(vocab_size=400, n_embd=16, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0)
    base = AutoModelForCausalLM.from_config(config)
    model = DynamicVocabForCausalLM.from_base(base, tokenizer=tokenizer, phrase_start="encoder")
    for part in (model, tokenizer):
        part.save_pretrained(folder)
    return str(folder)


def load_model(folder):
    return DynamicVocabForCausalLM.from_pretrained(folder).eval()


def builder(folder, model, texts=None, **given):
    rows = documents() if texts is None else Dataset.from_dict({"text": texts})
    return PhraseDatastoreBuilder(folder, rows, AutoTokenizer.from_pretrained(model), **{**SIZES, **given})


def build(folder, model, miners=("words", "fmm"), make_encoder=LetterEncoder, make_model=load_model, **given):
    """Build everything, and return its arrays and texts by name."""
    made = builder(folder, model, **given)
    made.cut()
    vocabulary = made.mine(miners, **MINED)
    collection = made.encode_passages(make_encoder, "letters")
    made.encode_phrases(partial(make_model, model), factory="IVF2,Flat", num_fitted=50, phrases_per_shard=100)
    found = {name: np.load(folder / "phrases" / f"{name}.npy") for name in ("counts", "inputs")}
    found |= dict(zip(("tokens", "offsets"), vocabulary.arrays()[:2], strict=True))
    found["index"] = np.fromfile(folder / "phrases" / "index" / "vectors.f16", np.float16)
    rows = collection.table.to_arrow().sort_by("id")
    found["texts"] = np.array(list(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True)))
    found["vectors"] = np.array(rows["vector"].to_pylist())
    return found


def assert_equal(found, expected):
    """Compare integers and texts exactly, and embeddings to rounding."""
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        if values.dtype.kind == "f":
            torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(values), rtol=1e-2, atol=1e-3)
        else:
            assert np.array_equal(found[name], values), name
