import math
import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from lab.llama2c import load_llama2c, load_llama2c_tokenizer
from tests.memory import realigned
from tests.programs import run_program

DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, SEQ_LEN = 24, 20, 2, 4, 2, 16
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = [" t", "he", " a", " the", "an", "nd", "  ", " and", "re", "ere", " there", *" tehandr", "é", "日", "日本"]
TOKENS = [(piece, 0.0) for piece in ["<unk>", "\n<s>\n", "\n</s>\n", *BYTES]]
TOKENS += [(piece, -float(rank)) for rank, piece in enumerate(PIECES)]
VOCAB = len(TOKENS)
TRAINED = Path(os.environ.get("HF_TARGETS_DATA", "")).parent / "models" / "stories260K"


def random_weights(tied=True, kv_heads=KV_HEADS):
    """Return the tensors of a version-0 file in the order of the file; matrices are (layer, out, in)."""
    generator = np.random.default_rng(0)
    keys = DIM // HEADS * kv_heads
    shapes = {
        "embeddings": (VOCAB, DIM),
        "attention_norm": (LAYERS, DIM),
        "wq": (LAYERS, DIM, DIM),
        "wk": (LAYERS, keys, DIM),
        "wv": (LAYERS, keys, DIM),
        "wo": (LAYERS, DIM, DIM),
        "ffn_norm": (LAYERS, DIM),
        "w1": (LAYERS, HIDDEN, DIM),
        "w2": (LAYERS, DIM, HIDDEN),
        "w3": (LAYERS, HIDDEN, DIM),
        "norm": (DIM,),
        "cosines": (SEQ_LEN, DIM // HEADS // 2),
        "sines": (SEQ_LEN, DIM // HEADS // 2),
        **({} if tied else {"classifier": (VOCAB, DIM)}),
    }
    weights = {name: generator.normal(size=shape).astype("<f4") for name, shape in shapes.items()}
    return {name: tensor / np.float32(DIM**0.5 if "w" in name else 1) for name, tensor in weights.items()}


def write_checkpoint(path, weights, kv_heads=KV_HEADS, **changes):
    sizes = {"dim": DIM, "hidden_dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS, "n_kv_heads": kv_heads}
    sizes |= {"vocab_size": -VOCAB if "classifier" in weights else VOCAB, "seq_len": SEQ_LEN} | changes
    path.write_bytes(struct.pack("<7i", *sizes.values()) + b"".join(tensor.tobytes() for tensor in weights.values()))
    return path


def write_tokenizer(path, tokens=TOKENS):
    encoded = [(piece.encode(), score) for piece, score in tokens]
    longest = max(len(piece) for piece, _ in encoded)
    rows = [struct.pack("<fi", score, len(piece)) + piece for piece, score in encoded]
    path.write_bytes(struct.pack("<i", longest) + b"".join(rows))
    return path


def rms_norm(x, weight):
    return weight * x / math.sqrt(sum(value * value for value in x) / len(x) + 1e-5)


def rotated(vector, position, head_size):
    """Rotate each adjacent pair of `vector`, as the loop of llama2.c's run.c does."""
    out = np.empty_like(vector)
    for i in range(0, len(vector), 2):
        angle = position / 10000.0 ** ((i % head_size) / head_size)
        out[i] = vector[i] * math.cos(angle) - vector[i + 1] * math.sin(angle)
        out[i + 1] = vector[i] * math.sin(angle) + vector[i + 1] * math.cos(angle)
    return out


def logits_by_hand(ids, weights, kv_heads):
    """Return (time, vocab) logits of llama2.c's forward, a position, layer and head at a time, in float64."""
    w = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
    size, logits = DIM // HEADS, []
    keys, values = [[] for _ in range(LAYERS)], [[] for _ in range(LAYERS)]
    for position, token in enumerate(ids):
        x = w["embeddings"][token]
        for layer in range(LAYERS):
            normed = rms_norm(x, w["attention_norm"][layer])
            query = rotated(w["wq"][layer] @ normed, position, size)
            keys[layer].append(rotated(w["wk"][layer] @ normed, position, size))
            values[layer].append(w["wv"][layer] @ normed)
            heads = []
            for head in range(HEADS):
                own = slice(head * size, (head + 1) * size)
                shared = head // (HEADS // kv_heads)
                theirs = slice(shared * size, (shared + 1) * size)
                scores = np.array([query[own] @ key[theirs] for key in keys[layer]]) / math.sqrt(size)
                attention = np.exp(scores - scores.max())
                attention /= attention.sum()
                heads.append(sum(a * value[theirs] for a, value in zip(attention, values[layer], strict=True)))
            x = x + w["wo"][layer] @ np.concatenate(heads)
            normed = rms_norm(x, w["ffn_norm"][layer])
            gate = w["w1"][layer] @ normed
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ normed))
        logits.append(w.get("classifier", w["embeddings"]) @ rms_norm(x, w["norm"]))
    return np.array(logits)


def ids_by_hand(text):
    """Encode like `encode` of run.c: join the neighbours whose piece has the highest score, leftmost first."""
    pieces = [piece for piece, _ in TOKENS]
    text = f" {text}" if text else ""
    ids = [i for c in text for i in ([pieces.index(c)] if c in pieces else [byte + 3 for byte in c.encode()])]
    while True:
        joined = [pieces[left] + pieces[right] for left, right in pairwise(ids)]
        found = [(TOKENS[pieces.index(piece)][1], -at) for at, piece in enumerate(joined) if piece in pieces]
        if not found:
            return [1, *ids]
        at = -max(found)[1]
        ids[at : at + 2] = [pieces.index(joined[at])]


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path / "model.bin", random_weights())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_llama2c_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tok") / "tok.bin"), SEQ_LEN)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_forward_pass_of_llama2c(tied, kv_heads, tmp_path):
    weights = random_weights(tied, kv_heads)
    model = load_llama2c(write_checkpoint(tmp_path / "model.bin", weights, kv_heads)).double()
    ids = torch.randint(VOCAB, (SEQ_LEN,))
    expected = torch.from_numpy(logits_by_hand(ids.tolist(), weights, kv_heads))
    assert expected.std() > 0.5
    torch.testing.assert_close(model(ids[None]).logits[0], expected, rtol=1e-5, atol=1e-5)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied


def test_generation_ends_where_the_next_story_would_begin(checkpoint):
    model: Any = load_llama2c(checkpoint)
    with torch.no_grad():  # each token is followed by the next lower id
        for parameter in model.parameters():
            parameter.zero_()
        model.model.norm.weight.fill_(1)
        model.model.embed_tokens.weight[:5, :5] = torch.eye(5)
        model.lm_head.weight = torch.nn.Parameter(torch.roll(model.lm_head.weight, -1, dims=0).clone())
    for first, expected in [(4, [4, 3, 2]), (2, [2, 1])]:
        assert model.generate(torch.tensor([[first]]), do_sample=False, max_new_tokens=4)[0].tolist() == expected


def test_a_checkpoint_of_another_length_than_its_header_says_is_refused(checkpoint):
    checkpoint.write_bytes(checkpoint.read_bytes()[:-4])
    with pytest.raises(ValueError, match="length of its header"):
        load_llama2c(checkpoint)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from(" thereandé日本z<0x4>")))
def test_ids_are_those_of_joining_the_best_neighbours_one_by_one(tokenizer, text):
    assert tokenizer(text)["input_ids"] == ids_by_hand(text)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("  therand\n") | st.characters(codec="utf-8", exclude_characters="▁")))
@example("  two  spaces , and ' s .")
def test_encoded_text_decodes_unchanged(tokenizer, text):
    assume(not any(special in text for special in tokenizer.all_special_tokens))
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_the_command_writes_a_folder_that_the_auto_classes_load(checkpoint, tmp_path):
    export, output = write_tokenizer(tmp_path / "tok.bin"), tmp_path / "folder"
    program = Path(__file__).parents[2] / "recipes" / "lab" / "llama2c.py"
    done = run_program(program, checkpoint, export, output)
    assert done.returncode == 0, done.stderr
    model, tokenizer = AutoModelForCausalLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    original, ids = load_llama2c(checkpoint), torch.randint(VOCAB, (2, SEQ_LEN))
    assert torch.equal(realigned(model)(ids).logits, realigned(original)(ids).logits)
    assert model.generation_config.to_dict() == original.generation_config.to_dict()
    for text in ["", " and é日本😀\n", "the<s>an"]:
        assert tokenizer(text) == load_llama2c_tokenizer(export, SEQ_LEN)(text)


@pytest.mark.skipif(not TRAINED.is_dir(), reason="no stories260K beside HF_TARGETS_DATA")
def test_a_trained_model_tells_its_story():
    model: Any = load_llama2c(TRAINED / "stories260K.bin")
    tokenizer = load_llama2c_tokenizer(TRAINED / "tok512.bin", 512)
    ids = model.generate(torch.tensor([[tokenizer.bos_token_id]]), do_sample=False, max_new_tokens=80)
    assert str(tokenizer.decode(ids[0], skip_special_tokens=True)).startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
        "One day, she saw a big, red ball."
    )
