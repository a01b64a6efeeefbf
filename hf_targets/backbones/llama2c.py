"""Conversion of llama2.c models and tokenizers (`stories260K.bin`, `tok512.bin` ...) to those of Transformers.

`python -m hf_targets.backbones.llama2c CHECKPOINT.bin TOKENIZER.bin OUTPUT_FOLDER` writes a folder that
`AutoModelForCausalLM.from_pretrained` and `AutoTokenizer.from_pretrained` load.
"""

import argparse
import math
import struct
import tempfile
from os import PathLike
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_HEADER = struct.Struct("<7i")
_HEADER_FIELDS = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
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
_UNKNOWN, _BEGIN, _END = "<unk>", "<s>", "</s>"
_FIRST_PIECES = [_UNKNOWN, _BEGIN, _END, *(f"<0x{byte:02X}>" for byte in range(256))]
_SPACE = "▁"  # SentencePiece's sign for a space; the export has plain spaces


def load_llama2c(checkpoint: str | PathLike) -> LlamaForCausalLM:
    """Return the model of a llama2.c version-0 checkpoint, in float32 and in evaluation mode.

    The file is seven little-endian int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len), then
    the float32 tensors of `_TENSORS` with D = dim, F = hidden_dim, L = n_layers, V = |vocab_size|, T = seq_len,
    H = D / (2 n_heads) and K = 2 H n_kv_heads.

    In each head, llama2.c rotates the pair of dimensions (2i, 2i + 1) by position / 10000^(i / H), and Transformers
    rotates the pair (i, i + H). So the rows of wq and wk are reordered in each head; no product q . k changes.

    Generation ends at `</s>` and, as in `run.c`, at `<s>`, because the `<s>` of the next story follows a story.

    Raises:
        ValueError: If `checkpoint` is not a file, its header has impossible sizes, its length does not fit the header,
            or a weight is not finite.

    Source: karpathy/llama2.c, `run.c` and `legacy_export` of `export.py`.
    """
    file = _existing_file(checkpoint)
    header = _read_header(file)
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


def load_llama2c_tokenizer(
    path: str | PathLike, vocab_size: int | None = None, model_max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a llama2.c export: SentencePiece's byte-pair merges, with bytes for other characters.

    The file is an int32 max_token_length, then for each id a float32 score, an int32 length and as many bytes of UTF-8,
    all little-endian. Ids 0, 1, 2 are `<unk>`, `<s>` (put before the text) and `</s>`; ids 3..258 are the bytes. A
    space is put before the text. Then, of all neighbouring pieces that together form a piece, those with the highest
    score are merged, leftmost first, until no such pair is left. `decode(encode(text), skip_special_tokens=True)` is
    `text`, unless `text` has special tokens or "▁", the sign for a space.

    Args:
        vocab_size: Number of ids that the model has; None: not checked.
        model_max_length: Longest input of the model in tokens, for truncation.

    Raises:
        ValueError: If `path` is not a file or not such an export, or the number of ids is not `vocab_size`.

    Source: karpathy/llama2.c, `tokenizer.py` (the layout) and `encode` of `run.c`.
    Departs: white space at both ends and repeated white space are kept, as in `run.c`; the SentencePiece model may
        treat them differently.
    """
    file = _existing_file(path)
    pieces, scores = _read_pieces(file)
    if vocab_size is not None and len(pieces) != vocab_size:
        raise ValueError(
            f"a tokenizer must have as many ids as its model, {vocab_size}, and {file} has {len(pieces)}; "
            f"give the tokenizer that the model was trained with"
        )
    vocab = {piece: id_ for id_, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, _merges(pieces, scores), unk_token=_UNKNOWN, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_BEGIN} $A", pair=f"{_BEGIN} $A {_BEGIN} $B", special_tokens=[(_BEGIN, 1)]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", left=1)]
    )
    length = {} if model_max_length is None else {"model_max_length": model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=_UNKNOWN, bos_token=_BEGIN, eos_token=_END, **length
    )


def main(arguments: list[str] | None = None) -> None:
    """Convert a checkpoint and its tokenizer into a new or empty folder; write nothing unless both are whole."""
    parser = argparse.ArgumentParser(
        "python -m hf_targets.backbones.llama2c", description="Convert a model of llama2.c."
    )
    parser.add_argument("checkpoint", type=Path, help="version-0 checkpoint, such as stories260K.bin")
    parser.add_argument("tokenizer", type=Path, help="its exported tokenizer, such as tok512.bin")
    parser.add_argument("output_folder", type=Path, help="folder to write, new or empty")
    given = parser.parse_args(arguments)
    output: Path = given.output_folder
    found = sorted(path.name for path in output.iterdir()) if output.is_dir() else ["a file"] * output.exists()
    if found:
        raise ValueError(f"the output folder must be new or empty, and {output} has {found}; name another or clear it")
    model = load_llama2c(given.checkpoint)
    config = model.config
    tokenizer = load_llama2c_tokenizer(given.tokenizer, config.vocab_size, config.max_position_embeddings)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        output.mkdir(exist_ok=True)
        for path in sorted(Path(folder).iterdir(), key=lambda path: path.name == "config.json"):
            path.replace(output / path.name)
    print(f"wrote {output}: a Llama of {model.num_parameters():,} parameters and a tokenizer of {len(tokenizer)} ids")


def _existing_file(path: str | PathLike) -> Path:
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"a file of llama2.c is needed, and {file} is not a file; check the path")
    return file


def _read_header(file: Path) -> dict[str, int]:
    with file.open("rb") as opened:
        data = opened.read(_HEADER.size)
    if len(data) < _HEADER.size:
        raise ValueError(f"a checkpoint begins with {_HEADER.size} bytes, {file} has {len(data)}; fetch it again")
    header: dict[str, int] = dict(zip(_HEADER_FIELDS, _HEADER.unpack(data), strict=True))
    positive = min({**header, "vocab_size": abs(header["vocab_size"])}.values()) > 0
    if not positive or header["dim"] % (2 * header["n_heads"]) or header["n_heads"] % header["n_kv_heads"]:
        raise ValueError(
            f"the header of a version-0 checkpoint has positive sizes (vocab_size may be negative), an even dim / "
            f"n_heads and a whole n_heads / n_kv_heads, and {file} has {header}; export it with llama2.c's export.py "
            f"--version 0"
        )
    return header


def _read_state(file: Path, header: dict[str, int]) -> dict[str, Tensor]:
    half = header["dim"] // header["n_heads"] // 2
    sizes = {
        "D": header["dim"],
        "F": header["hidden_dim"],
        "L": header["n_layers"],
        "V": abs(header["vocab_size"]),
        "T": header["seq_len"],
        "H": half,
        "K": 2 * half * header["n_kv_heads"],
    }
    is_tied = header["vocab_size"] > 0
    shapes = {name: [sizes[letter] for letter in shape] for name, shape in _TENSORS if name != "lm_head" or not is_tied}
    counts = [math.prod(shape) for shape in shapes.values()]
    num_bytes, expected = file.stat().st_size, _HEADER.size + 4 * sum(counts)
    if num_bytes != expected:
        raise ValueError(
            f"a version-0 checkpoint with the header of {file} has {expected} bytes, got {num_bytes}; it is cut short "
            f"or of another version: fetch it again, or export it with llama2.c's export.py --version 0"
        )
    weights = torch.from_numpy(np.fromfile(file, "<f4", offset=_HEADER.size).astype(np.float32, copy=False))
    state = {}
    for (name, shape), values in zip(shapes.items(), weights.split(counts), strict=True):
        if name.startswith("rotary"):
            continue
        if not torch.isfinite(values).all():
            raise ValueError(f"weights must be finite numbers, and {name} in {file} has others; fetch it again")
        tensor = values.reshape(shape)
        if name.endswith(("q_proj", "k_proj")):
            tensor = tensor.unflatten(1, (-1, half, 2)).transpose(2, 3).reshape(shape)
        for layer, rows in enumerate(tensor) if "{}" in name else [(0, tensor)]:
            state[f"{name.format(layer)}.weight"] = rows.clone()  # else all parameters would be views of one buffer
    return state


def _read_pieces(file: Path) -> tuple[list[str], list[float]]:
    data = file.read_bytes()
    longest = int.from_bytes(data[:4], "little", signed=True)
    pieces, scores, start = [], [], 4
    while start < len(data):
        score, length = struct.unpack_from("<fi", data, start) if start + 8 <= len(data) else (math.nan, -1)
        start += 8 + max(length, 0)
        if not 0 < length <= longest or start > len(data) or math.isnan(score):
            raise ValueError(
                f"an exported tokenizer has a score, a length in 1..{longest} and as many bytes for each id, and "
                f"{file} lacks them for id {len(pieces)}; fetch it again, or export it with llama2.c's tokenizer.py"
            )
        try:
            pieces.append(data[start - length : start].decode("utf-8").replace(" ", _SPACE))
        except UnicodeDecodeError as error:
            raise ValueError(
                f"pieces must be UTF-8, and id {len(pieces)} of {file} is not; fetch the file again"
            ) from error
        scores.append(score)
    pieces[1:3] = [piece.strip("\n") for piece in pieces[1:3]]  # exported as "\n<s>\n" and "\n</s>\n"
    if pieces[: len(_FIRST_PIECES)] != _FIRST_PIECES or len(set(pieces)) != len(pieces):
        raise ValueError(
            f"an exported tokenizer begins with <unk>, <s>, </s> and <0x00> to <0xFF> and has no piece twice, "
            f"and {file} breaks this rule; export it with the tokenizer.py of a later llama2.c"
        )
    return pieces, scores


def _merges(pieces: list[str], scores: list[float]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that join into a piece, ordered by the score of the result, highest first."""
    ids = {piece: id_ for id_, piece in enumerate(pieces[len(_FIRST_PIECES) :], start=len(_FIRST_PIECES))}
    ranked = []
    for piece, id_ in ids.items():
        splits = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
        joins = [(ids[left], ids[right], left, right) for left, right in splits if left in ids and right in ids]
        ranked += [(-scores[id_], id_, *join) for join in joins]
    return [(left, right) for *_, left, right in sorted(ranked)]


if __name__ == "__main__":
    main()
