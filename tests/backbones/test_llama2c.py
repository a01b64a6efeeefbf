import math
import os
import runpy
import struct
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from hf_targets.backbones.llama2c import load_llama2c, load_llama2c_tokenizer, main
from tests.memory import realigned

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


def write_tokenizer(path, tokens=TOKENS, longest=None):
    encoded = [(piece if isinstance(piece, bytes) else piece.encode(), score) for piece, score in tokens]
    longest = max(len(piece) for piece, _ in encoded) if longest is None else longest
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


@pytest.fixture
def export(tmp_path):
    return write_tokenizer(tmp_path / "tok.bin")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_llama2c_tokenizer(write_tokenizer(tmp_path_factory.mktemp("tok") / "tok.bin"), VOCAB, SEQ_LEN)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_the_forward_pass_of_llama2c(tied, kv_heads, dtype, tmp_path):
    weights = random_weights(tied, kv_heads)
    model = load_llama2c(write_checkpoint(tmp_path / "model.bin", weights, kv_heads)).to(dtype)
    ids = torch.randint(VOCAB, (SEQ_LEN,))
    expected = torch.from_numpy(logits_by_hand(ids.tolist(), weights, kv_heads)).to(dtype)
    assert expected.std() > 0.5
    torch.testing.assert_close(model(ids[None]).logits[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tied", [True, False])
def test_a_negative_vocabulary_size_means_output_embeddings_of_their_own(tied, tmp_path):
    model: Any = load_llama2c(write_checkpoint(tmp_path / "model.bin", random_weights(tied)))
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    assert model.config.tie_word_embeddings == tied
    assert model.config.vocab_size == VOCAB


def test_a_model_is_a_llama_ready_to_use(checkpoint):
    state = torch.get_rng_state()
    model = load_llama2c(checkpoint)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(model) is LlamaForCausalLM
    assert not model.training
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.config.max_position_embeddings == SEQ_LEN
    assert model.config.rms_norm_eps == 1e-5
    assert (model.config.bos_token_id, model.config.eos_token_id) == (1, 2)
    assert (model.generation_config.bos_token_id, model.generation_config.eos_token_id) == (1, [2, 1])


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


def test_the_first_ids_are_unknown_begin_end_and_the_bytes(tokenizer):
    assert type(tokenizer) is PreTrainedTokenizerFast
    assert tokenizer.convert_ids_to_tokens(list(range(259))) == ["<unk>", "<s>", "</s>", *BYTES]
    assert (tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert len(tokenizer) == VOCAB
    assert tokenizer.model_max_length == SEQ_LEN
    assert set(tokenizer("a")) == {"input_ids", "attention_mask"}


def test_encoded_text_begins_with_the_begin_token(tokenizer):
    assert tokenizer("")["input_ids"] == [1]
    assert tokenizer.tokenize(" and there", add_special_tokens=True) == ["<s>", "▁", "▁and", "▁there"]
    assert tokenizer("a", "an")["input_ids"] == tokenizer("a")["input_ids"] + tokenizer("an")["input_ids"]
    assert tokenizer("a", add_special_tokens=False)["input_ids"] == tokenizer("a")["input_ids"][1:]


@pytest.mark.parametrize(
    ("scores", "expected"), [({"bc": -2.0, "ab": -1.0}, ["ab", "c"]), ({"bc": -2.0, "ab": -3.0}, ["a", "bc"])]
)
def test_the_piece_with_the_highest_score_is_joined_first_and_from_any_two(scores, expected, tmp_path):
    tokens = [*TOKENS[:259], *((letter, -9.0) for letter in "abcx"), *scores.items()]
    assert load_llama2c_tokenizer(write_tokenizer(tmp_path / "tok.bin", tokens)).tokenize("xabc")[-2:] == expected
    tokens.append(("abc", -5.0))
    assert load_llama2c_tokenizer(write_tokenizer(tmp_path / "tok.bin", tokens)).tokenize("xabc")[-1] == "abc"


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from(" thereandé日本z<0x4>")))
def test_ids_are_those_of_joining_the_best_neighbours_one_by_one(tokenizer, text):
    assert tokenizer(text)["input_ids"] == ids_by_hand(text)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("  therand\n") | st.characters(codec="utf-8", exclude_characters="▁")))
def test_encoded_text_decodes_unchanged(tokenizer, text):
    assume(not any(special in text for special in tokenizer.all_special_tokens))
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


@pytest.mark.parametrize("text", [" ", "  two  spaces , and ' s .", "\r\n\t\0", "<0x41> is A", "naïve 😀 e\u0301"])
def test_text_that_a_clean_up_would_change_decodes_unchanged(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_a_character_without_a_piece_becomes_its_bytes(tokenizer):
    assert tokenizer.tokenize("日😀") == ["▁", "日", "<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]


def test_the_command_writes_a_folder_that_the_auto_classes_load(checkpoint, export, tmp_path, monkeypatch, capsys):
    output = tmp_path / "new" / "and" / "folder"
    monkeypatch.setattr(sys, "argv", ["llama2c", str(checkpoint), str(export), str(output)])
    monkeypatch.delitem(sys.modules, "hf_targets.backbones.llama2c")
    runpy.run_module("hf_targets.backbones.llama2c", run_name="__main__")
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == 1
    assert f"{VOCAB} ids" in printed
    assert [path.name for path in output.parent.iterdir()] == ["folder"]
    model, tokenizer = AutoModelForCausalLM.from_pretrained(output), AutoTokenizer.from_pretrained(output)
    original, ids = load_llama2c(checkpoint), torch.randint(VOCAB, (2, SEQ_LEN))
    assert torch.equal(realigned(model)(ids).logits, realigned(original)(ids).logits)
    assert model.generation_config.to_dict() == original.generation_config.to_dict()
    assert tokenizer.model_max_length == SEQ_LEN
    for text in ["", " and é日本😀\n", "the<s>an"]:
        assert tokenizer(text) == load_llama2c_tokenizer(export)(text)


def test_the_command_takes_an_empty_folder(checkpoint, export, tmp_path):
    (tmp_path / "out").mkdir()
    main([str(checkpoint), str(export), str(tmp_path / "out")])
    assert (tmp_path / "out" / "config.json").is_file()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dim": 0}, "'dim': 0"),
        ({"hidden_dim": -1}, "'hidden_dim': -1"),
        ({"n_layers": 0}, "'n_layers': 0"),
        ({"n_heads": -4}, "'n_heads': -4"),
        ({"n_heads": 5}, "even dim / n_heads.*'n_heads': 5"),
        ({"n_heads": 8}, "even dim / n_heads.*'n_heads': 8"),
        ({"n_kv_heads": 0}, "'n_kv_heads': 0"),
        ({"n_kv_heads": 3}, "whole n_heads / n_kv_heads.*'n_kv_heads': 3"),
        ({"vocab_size": 0}, "'vocab_size': 0"),
        ({"seq_len": 0}, "'seq_len': 0"),
        ({"dim": 0x616B3432, "hidden_dim": 1, "n_layers": 64}, "'dim': 1634415666"),  # as in version 1
        ({"dim": 2**30, "hidden_dim": 2**30}, "it is cut short or of another version"),
        ({"vocab_size": -VOCAB}, "it is cut short or of another version"),
    ],
)
def test_a_header_that_describes_no_model_or_another_is_refused(changes, told, tmp_path):
    with pytest.raises(ValueError, match=f"{told}.*export.py"):
        load_llama2c(write_checkpoint(tmp_path / "bad.bin", random_weights(), **changes))


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:-4], lambda data: data + b"\0"])
def test_a_checkpoint_of_another_length_than_its_header_says_is_refused(change, checkpoint):
    data = checkpoint.read_bytes()
    checkpoint.write_bytes(change(data))
    with pytest.raises(ValueError, match=rf"has {len(data)} bytes, got {len(change(data))}; .*fetch it again"):
        load_llama2c(checkpoint)


def test_a_checkpoint_shorter_than_its_header_is_refused(checkpoint):
    checkpoint.write_bytes(checkpoint.read_bytes()[:27])
    with pytest.raises(ValueError, match=r"begins with 28 bytes, .* has 27; fetch it again"):
        load_llama2c(checkpoint)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_weight_that_is_no_number_is_refused(value, tmp_path):
    weights = random_weights()
    weights["w3"][1, 2, 3] = value
    with pytest.raises(ValueError, match=r"finite numbers, and .*up_proj .*fetch it again"):
        load_llama2c(write_checkpoint(tmp_path / "model.bin", weights))


@pytest.mark.parametrize("load", [load_llama2c, load_llama2c_tokenizer])
@pytest.mark.parametrize("name", [".", "absent.bin"])
def test_what_is_no_file_is_refused(load, name, tmp_path):
    with pytest.raises(ValueError, match="is not a file; check the path"):
        load(tmp_path / name)


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ([*TOKENS, (b"\xff", -99.0)], f"UTF-8, and id {VOCAB} of"),
        ([*TOKENS, ("the", math.nan)], f"lacks them for id {VOCAB};"),
        ([*TOKENS, ("", -99.0)], f"lacks them for id {VOCAB};"),
        ([*TOKENS, ("日本", -99.0)], "no piece twice"),
        (TOKENS[:258], "begins with <unk>"),
        ([*TOKENS[1:3], TOKENS[0], *TOKENS[3:]], "begins with <unk>"),
        ([(chr(int(p[3:5], 16)) if p in BYTES else p, s) for p, s in TOKENS], "tokenizer.py of a later llama2.c"),
        ([], "begins with <unk>"),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tokens, told, tmp_path):
    with pytest.raises(ValueError, match=told):
        load_llama2c_tokenizer(write_tokenizer(tmp_path / "tok.bin", tokens, longest=8))


@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data[:-8], lambda data: data + b"\0\0\0"])
def test_a_tokenizer_that_is_cut_short_or_goes_on_is_refused(change, export):
    export.write_bytes(change(export.read_bytes()))
    with pytest.raises(ValueError, match=r"lacks them for id .*fetch it again"):
        load_llama2c_tokenizer(export)


def test_a_piece_longer_than_the_longest_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"length in 1\.\.5 .* lacks them for id 2;"):
        load_llama2c_tokenizer(write_tokenizer(tmp_path / "tok.bin", longest=5))


def test_a_tokenizer_with_another_number_of_ids_than_its_model_is_refused(export):
    with pytest.raises(ValueError, match=f"as many ids as its model, 512, and .* has {VOCAB}; give the tokenizer"):
        load_llama2c_tokenizer(export, vocab_size=512)


@pytest.mark.parametrize("broken", ["checkpoint", "tokenizer", "vocabulary", "disk"])
def test_a_command_that_fails_writes_nothing(broken, checkpoint, export, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError("no space left")

    if broken == "checkpoint":
        checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    elif broken == "tokenizer":
        export.write_bytes(export.read_bytes()[:-1])
    elif broken == "vocabulary":
        write_tokenizer(export, TOKENS[:-1])
    else:
        monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", full)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OSError if broken == "disk" else ValueError):
        main([str(checkpoint), str(export), str(tmp_path / "out")])
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_has_a_model_is_left_as_it_is(checkpoint, export, tmp_path):
    output = tmp_path / "out"
    output.mkdir()
    (output / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"new or empty, and .*out has \['config.json'\]; name another"):
        main([str(checkpoint), str(export), str(output)])
    assert [path.name for path in output.iterdir()] == ["config.json"]
    assert (output / "config.json").read_text() == "{}"
    with pytest.raises(ValueError, match="new or empty"):
        main([str(checkpoint), str(export), str(export)])


@pytest.mark.skipif(
    "HF_TARGETS_DATA" not in os.environ or not TRAINED.is_dir(), reason="no stories260K beside HF_TARGETS_DATA"
)
def test_a_trained_model_tells_its_story():
    model: Any = load_llama2c(TRAINED / "stories260K.bin")
    tokenizer = load_llama2c_tokenizer(TRAINED / "tok512.bin", model.config.vocab_size)
    ids = model.generate(torch.tensor([[tokenizer.bos_token_id]]), do_sample=False, max_new_tokens=80)
    assert str(tokenizer.decode(ids[0], skip_special_tokens=True)).startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. "
        "One day, she saw a big, red ball."
    )
