"""Convert a model of llama2.c and its tokenizer (`stories260K.bin`, `tok512.bin` ...) to a folder of Transformers.

    python recipes/lab/llama2c.py CHECKPOINT.bin TOKENIZER.bin OUTPUT_FOLDER

Source: karpathy/llama2.c, `run.c`, `legacy_export` of `export.py` (version 0), and `tokenizer.py`.
"""

import struct
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_HEADER = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
_TENSORS = (  # in the order of the file; {} is the number of the layer, which runs along L
    ("model.embed_tokens", "VD"),
    ("model.layers.{}.input_layernorm", "LD"),
    ("model.layers.{}.self_attn.q_proj", "LDD"),
    ("model.layers.{}.self_attn.k_proj", "LKD"),
    ("model.layers.{}.self_attn.v_proj", "LKD"),
    ("model.layers.{}.self_attn.o_proj", "LDD"),
    ("model.layers.{}.post_attention_layernorm", "LD"),
    ("model.layers.{}.mlp.gate_proj", "LFD"),
    ("model.layers.{}.mlp.down_proj", "LDF"),
    ("model.layers.{}.mlp.up_proj", "LFD"),
    ("model.norm", "D"),
    ("rotary cosines", "TH"),
    ("rotary sines", "TH"),
    ("lm_head", "VD"),  # only if vocab_size is negative; else the embeddings are used
)
_SPACE = "▁"  # SentencePiece's sign for a space; the export has plain spaces
_NUM_SPECIAL = 3 + 256  # <unk>, <s>, </s> and the bytes


def load_llama2c(checkpoint: str | Path) -> LlamaForCausalLM:
    """Return the model of a version-0 checkpoint; ValueError if the file's length does not fit its header.

    In each head, llama2.c rotates the pair of dimensions (2i, 2i + 1), and Transformers the pair (i, i + H). So the
    rows of wq and wk are reordered in each head; no product q . k changes. Generation ends at `</s>` and, as in
    `run.c`, at `<s>`, with which the next story begins.
    """
    file = Path(checkpoint)
    with file.open("rb") as opened:
        header: dict[str, int] = dict(zip(_HEADER, struct.unpack("<7i", opened.read(28)), strict=True))
    config = LlamaConfig(
        vocab_size=abs(header["vocab_size"]),
        hidden_size=header["dim"],
        intermediate_size=header["hidden_dim"],
        num_hidden_layers=header["n_layers"],
        num_attention_heads=header["n_heads"],
        num_key_value_heads=header["n_kv_heads"],
        max_position_embeddings=header["seq_len"],
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=header["vocab_size"] > 0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM.from_pretrained(None, config=config, state_dict=_read_state(file, header))
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[2, 1])
    return model


def _read_state(file: Path, header: dict[str, int]) -> dict[str, Tensor]:
    half = header["dim"] // header["n_heads"] // 2
    sizes = {"D": header["dim"], "F": header["hidden_dim"], "L": header["n_layers"], "V": abs(header["vocab_size"])}
    sizes |= {"T": header["seq_len"], "H": half, "K": 2 * half * header["n_kv_heads"]}
    named = _TENSORS[:-1] if header["vocab_size"] > 0 else _TENSORS
    shapes = {name: [sizes[letter] for letter in shape] for name, shape in named}
    weights = torch.from_numpy(np.fromfile(file, "<f4", offset=28).astype(np.float32, copy=False))
    counts = [int(np.prod(shape)) for shape in shapes.values()]
    if file.stat().st_size != 28 + 4 * sum(counts):
        raise ValueError(f"{file} does not have the length of its header {header}; export it again as version 0")
    state = {}
    for (name, shape), values in zip(shapes.items(), weights.split(counts), strict=True):
        tensor = values.reshape(shape)
        if name.endswith(("q_proj", "k_proj")):
            tensor = tensor.unflatten(1, (-1, half, 2)).transpose(2, 3).reshape(shape)
        for layer, rows in enumerate(tensor) if "{}" in name else [(0, tensor)]:
            state[f"{name.format(layer)}.weight"] = rows.clone()  # else all parameters would be views of one buffer
    return {name: tensor for name, tensor in state.items() if not name.startswith("rotary")}


def load_llama2c_tokenizer(file: str | Path, model_max_length: int) -> PreTrainedTokenizerFast:
    """Return the tokenizer of an exported file: of each id a score, a length and so many bytes."""
    data, start, pieces, scores = Path(file).read_bytes(), 4, [], []
    while start < len(data):
        score, length = struct.unpack_from("<fi", data, start)
        start += 8 + length
        pieces.append(data[start - length : start].decode("utf-8").replace(" ", _SPACE))
        scores.append(score)
    pieces[1:3] = ["<s>", "</s>"]  # exported with line breaks around
    ids = {piece: id_ for id_, piece in enumerate(pieces)}
    joins = []  # of any two pieces that make a piece, that of the highest score first
    for piece in pieces[_NUM_SPECIAL:]:
        splits = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        known = [pair for pair in splits if min(ids.get(part, 0) for part in pair) >= _NUM_SPECIAL]
        joins += [(-scores[ids[piece]], ids[piece], *map(ids.get, pair), pair) for pair in known]
    merges = [pair for *_, pair in sorted(joins)]
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    spaces, strip = decoders.Replace(_SPACE, " "), decoders.Strip(" ", left=1)
    tokenizer.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), decoders.Fuse(), strip])
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=model_max_length, **special)


if __name__ == "__main__":
    model = load_llama2c(sys.argv[1])
    load_llama2c_tokenizer(sys.argv[2], model.config.max_position_embeddings).save_pretrained(sys.argv[3])
    model.save_pretrained(sys.argv[3])
