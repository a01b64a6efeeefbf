"""Frequent n-grams of words as tokens of any tokenizer (multiword tokens), with embeddings made of their pieces'."""

import json
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import regex
import torch
from tokenizers import Tokenizer, normalizers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from hf_targets.backbones.new_parts import check_no_adapters
from hf_targets.backbones.weight_access import is_readable
from hf_targets.data.tokenization import check_fast
from hf_targets.data.words import check_texts

_Model = TypeVar("_Model", bound=PreTrainedModel)
_LETTERS = r"\p{L}[\p{L}\p{M}]{0,29}"
_WORD = regex.compile(rf"(?<!\w){_LETTERS}(?:['\u2019]{_LETTERS})*+(?!\w)")
_AROUND = "."  # stands beside an n-gram, whose space is then that of words inside a text
_SPACE = "\u2581"  # as SentencePiece writes it
_BYTE_LEVEL = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # GPT-2's, as in tokenizers
_MARK = r"\p{P}$+<=>^`|~"  # what BERT cuts off
_DROPS_SPACES = {  # by pre-tokenizer: the words that it finds, and what may not follow one
    "BertPreTokenizer": (rf"[{_MARK}]|[^\s{_MARK}]+", rf"(?![^\s{_MARK}])"),
    "WhitespaceSplit": (r"\S+", r"(?!\S)"),
}


def transfer_vocabulary(
    model: _Model, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], num_tokens: int, *, max_words: int = 2
) -> tuple[_Model, PreTrainedTokenizerFast]:
    """Return a model and a tokenizer for which the most frequent n-grams of words of `texts` are tokens.

    A new token's rows in both embeddings, tied or not, and in the bias of the output are the mean of those of its
    pieces (fast vocabulary transfer, FVT); rows and logits of old tokens stay as they are. Both results are plain ones:
    any Trainer trains the model, and `save_pretrained` and the Auto classes need nothing of this package.

    Args:
        model: Any model; its matrices grow in place, and it is returned.
        tokenizer: Its own, as for `multiword_tokenizer`; it is left as it is.
        texts: The support corpus, such as lines or documents.
        num_tokens: Number of new tokens, 1 or more. The paper has 10,000.
        max_words: The longest n-gram, 2 to 5. The paper has bigrams.
    Raises:
        ValueError: As `multiword_tokenizer`, or if the model has adapters, its matrices are sharded or quantized, or
            they have fewer rows than the tokenizer has tokens.
    Source: Gee et al. 2022 (FVT) and 2023 (multiword tokens); the baseline of Liu et al. 2024, section 3.1.
    Departs: their code loses the space before a word, and leaves an untied output matrix as it was.

    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from hf_targets import train_bpe_tokenizer
    >>> texts = ["a cat sat on the mat", "a dog sat on the mat"]
    >>> tokenizer = train_bpe_tokenizer(texts, vocab_size=270)
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=270, n_embd=8, n_layer=1, n_head=2))
    >>> model, tokenizer = transfer_vocabulary(model, tokenizer, texts, 2, max_words=3)
    >>> [tokenizer.decode(number) for number in (270, 271)]
    [' on the', ' on the mat']
    """
    check_no_adapters(model, "the vocabulary grows only")
    new, pieces = multiword_tokenizer(tokenizer, texts, num_tokens, max_words=max_words)
    layers = [layer for layer in (model.get_input_embeddings(), model.get_output_embeddings()) if layer is not None]
    if not all(is_readable(layer) and torch.is_floating_point(cast(Tensor, layer.weight)) for layer in layers):
        raise ValueError("new rows need whole weights; load the model on one device, unquantized")
    old_rows = len(cast(Tensor, layers[0].weight))
    if old_rows < min(pieces):
        raise ValueError(f"the tokenizer has {min(pieces)} tokens and the model {old_rows} rows; take the model's own")

    model.resize_token_embeddings(max(old_rows, max(pieces) + 1), mean_resizing=False)
    layers = [layer for layer in (model.get_input_embeddings(), model.get_output_embeddings()) if layer is not None]
    parts = {id(tensor): tensor.data for layer in layers for tensor in layer.parameters(recurse=False)}  # tied: once
    biases = [tensor[0] for name, tensor in model.named_buffers() if name.endswith("final_logits_bias")]
    for rows in [*parts.values(), *biases]:
        for number, of in pieces.items():
            rows[number] = rows[of].float().mean(0).to(rows.dtype)
    return model, new


def multiword_tokenizer(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], num_tokens: int, *, max_words: int = 2
) -> tuple[PreTrainedTokenizerFast, dict[int, list[int]]]:
    """Return a tokenizer for which frequent n-grams are tokens, and the old ids that each new id stands for.

    Of several n-grams the leftmost is taken, and of those the longest; it begins with the space before its first word
    and ends where a word ends. All other text is cut as before, and ids decode to the same text. The n-grams are pieces
    of the tokenizer's own model (BPE, unigram, WordPiece or whole words), whose pre-tokenizer keeps them whole. With
    BPE, a word of the vocabulary that no merges make becomes one token too.

    Args: As for `transfer_vocabulary`. Words are runs of letters, with apostrophes inside, parted by one space.
    Raises:
        ValueError: If the tokenizer is a slow one, or one whose n-grams cannot be kept whole and decode as before, or
            if fewer n-grams than asked for occur twice.
    """
    check_fast(tokenizer)
    check_texts(texts, "texts")
    if not 2 <= max_words <= 5 or num_tokens < 1:
        raise ValueError(f"max_words must be 2 to 5 and num_tokens 1 or more, got {max_words} and {num_tokens}")
    old = cast(Tokenizer, tokenizer.backend_tokenizer)
    state = json.loads(old.to_str())
    found: dict[str, tuple[str, str, list[int]]] = {}  # by the n-gram as the pre-tokenizer writes it
    for ngram in _frequent(texts, max_words):
        form = _form(old, state, ngram)
        cut = [piece for piece, _ in old.pre_tokenizer.pre_tokenize_str(form)] if old.pre_tokenizer else [form]
        pieces = [token.id for piece in cut for token in old.model.tokenize(piece)]
        token = "".join(cut) if form[0] in f" {_SPACE}" else form
        if len(pieces) > 1 and tokenizer.unk_token_id not in pieces and old.token_to_id(token) is None:
            found.setdefault(form, (ngram, token, pieces))
        if len(found) == num_tokens:
            break
    if len(found) < num_tokens:
        raise ValueError(
            f"{num_tokens} new tokens need as many n-grams that occur twice, and the texts have {len(found)}; "
            "give more text, or a smaller num_tokens"
        )
    first = max(old.get_vocab(with_added_tokens=True).values()) + 1
    _add(state, old, {form: token for form, (_, token, _) in found.items()}, first)
    with TemporaryDirectory() as folder:  # with all settings, and of the class that takes tokenizer.json as it is
        tokenizer.save_pretrained(folder)
        (Path(folder) / "tokenizer.json").write_text(json.dumps(state), encoding="utf-8")
        kept = {name: getattr(tokenizer, name) for name in ("model_input_names", "padding_side", "truncation_side")}
        new = PreTrainedTokenizerFast.from_pretrained(folder, **kept)
    new.name_or_path = tokenizer.name_or_path

    texts = [f"{_AROUND} {ngram} {_AROUND}" for ngram, *_ in found.values()]
    before, after = (each(texts, add_special_tokens=False, verbose=False)["input_ids"] for each in (tokenizer, new))
    for number, (text, was, now) in enumerate(zip(texts, before, after, strict=True), start=first):
        if number not in now or tokenizer.decode(was) != new.decode(now):
            raise ValueError(
                f"{text!r} must have one token for its n-gram and decode as before, and is {new.decode(now)!r} by "
                f"{new.convert_ids_to_tokens(now)}; take a byte-level, SentencePiece or WordPiece tokenizer"
            )
    return new, dict(enumerate((pieces for *_, pieces in found.values()), start=first))


def _frequent(texts: Sequence[str], max_words: int) -> list[str]:
    """Return the n-grams that occur twice or more, the most frequent first, then in alphabetical order."""
    counts: Counter[str] = Counter()
    for text in texts:
        words = [word.span() for word in _WORD.finditer(text)]
        for index, (start, end) in enumerate(words):
            for next_start, next_end in islice(words, index + 1, index + max_words):
                if text[end:next_start] != " ":
                    break
                end = next_end
                counts[text[start:end]] += 1
    return sorted((ngram for ngram, count in counts.items() if count > 1), key=lambda ngram: (-counts[ngram], ngram))


def _form(old: Tokenizer, state: dict[str, Any], ngram: str) -> str:
    """Return an n-gram inside a text after normalisation, as the pre-tokenizer writes it."""
    normalized = (old.normalizer or normalizers.Sequence([])).normalize_str(f"{_AROUND} {ngram}")
    form = normalized[normalized.index(_AROUND) + 1 :]
    if state["model"]["type"] in ("WordPiece", "WordLevel"):  # which see no spaces
        return form.strip()
    return form.replace(" ", _SPACE) if any(step["type"] == "Metaspace" for step in _steps(state)) else form


def _steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    step = state["pre_tokenizer"] or {"type": "Sequence", "pretokenizers": []}
    return step["pretokenizers"] if step["type"] == "Sequence" else [step]


def _add(state: dict[str, Any], old: Tokenizer, tokens: dict[str, str], first: int) -> None:
    """Add n-grams to a tokenizer's state: by their forms, the pieces that its model gets, with ids from `first` on."""
    model = state["model"]
    state["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": _whole_ngrams(state, list(tokens))}
    if (state["decoder"] or {}).get("type") == "Metaspace":  # which drops each sign in the first token of a text
        inner = {"type": "Replace", "pattern": {"Regex": f"(?<=[^{_SPACE}]){_SPACE}"}, "content": " "}
        state["decoder"] = {"type": "Sequence", "decoders": [inner, state["decoder"]]}
    new = {token: number for number, token in enumerate(tokens.values(), start=first)}
    vocab = old.get_vocab(with_added_tokens=True) | new  # added tokens outside of it would get other ids
    if model["type"] == "Unigram":  # ids are positions; a new piece scores above the sum of any of its parts
        names, least = sorted(vocab, key=vocab.__getitem__), min(score for _, score in model["vocab"])
        scores = [float(name.count(_SPACE) - 1) if name in new else least for name in names]
        model["vocab"] += list(zip(names, scores, strict=True))[len(model["vocab"]) :]
    else:  # in BPE a whole word of the vocabulary is then one token, as its merges would make it
        model |= {"vocab": vocab} | ({"ignore_merges": True} if model["type"] == "BPE" else {})


def _whole_ngrams(state: dict[str, Any], forms: list[str]) -> list[dict[str, Any]]:
    """Return the pre-tokenizers; those that cut at spaces become a `Split` by an expression that has n-grams first."""
    in_words = r"(?![\w<])" if forms[0].startswith(_SPACE) else r"(?!\w)"  # "<0x0A>" as a whole is the piece of a byte

    def split(words: str, end: str = in_words, **options: Any) -> dict[str, Any]:
        written = [form.replace(_SPACE, " ").strip() for form in forms] if "invert" in options else forms
        pattern = {"Regex": f"{_expression(written)}{end}|{words}"}
        return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False, **options}

    new = []
    for step in _steps(state):
        kind = step["type"]
        if kind == "ByteLevel" and step["use_regex"]:
            if step["add_prefix_space"]:  # once, before the cut
                new.append({"type": "Metaspace", "replacement": " ", "prepend_scheme": "always", "split": False})
            new += [split(_BYTE_LEVEL), step | {"use_regex": False, "add_prefix_space": False}]
        elif kind == "Metaspace" and step["split"]:
            new += [step | {"split": False}, split(f"{_SPACE}?[^{_SPACE}]+|{_SPACE}")]
        elif kind == "Split" and (step["behavior"], step["invert"]) == ("Isolated", False):
            new.append(split(step["pattern"].get("Regex") or regex.escape(step["pattern"]["String"])))
        elif kind in _DROPS_SPACES:
            words, end = _DROPS_SPACES[kind]
            new.append(split(words, end, behavior="Removed", invert=True))
        else:
            new.append(step)
    if new == _steps(state):
        if state["model"]["type"] == "Unigram":
            raise ValueError("a unigram tokenizer must cut text at spaces, and this one does not; take another")
        new.append(split(r"\A<(?=0x[0-9A-F]{2}>)"))
    return new


def _expression(forms: list[str]) -> str:
    """Return a regular expression for any of the n-grams, the longest one that fits."""
    tree: dict[str, Any] = {}
    for form in forms:
        reduce(lambda node, letter: node.setdefault(letter, {}), form, tree)[""] = {}

    def below(node: dict[str, Any]) -> str:
        ways = [regex.escape(letter) + below(rest) for letter, rest in node.items() if letter]
        return f"(?:{'|'.join(ways)})" + "?" * ("" in node) if ways else ""

    return (f"(?<!{_SPACE})" if _SPACE in tree else "") + below(tree)  # a run of spaces may be a token
