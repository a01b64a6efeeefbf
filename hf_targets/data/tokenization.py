"""Tokenizers: trained on a corpus (byte-level pieces, whole words), what they make of a text, and their identity."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from datasets import Dataset

END_OF_TEXT = "<|endoftext|>"
END_OF_LINE = "<eos>"
UNKNOWN_WORD = "<unk>"
PAD_WORD = "<pad>"
MASKING_TOKENS: dict[str, Any] = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
"""The special tokens of BERT, by the names of their roles."""
_ONLY_PYTHON_SPACES = "\x1c\x1d\x1e\x1f"  # white space for `str.split`, and not for `WhitespaceSplit`
_PROBE = "The  tokenizer's own\n\tspaces, (digits: 3.14159) and signs: naïve café, Straße, 東京, 🙂 ▁Ġ.\r\n"
_FINGERPRINTS: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, str]] = WeakKeyDictionary()
"""The known fingerprints, each with the size of its tokenizer, to which tokens may be added later."""


def train_bpe_tokenizer(
    texts: "Dataset | Iterable[str]", vocab_size: int, model_max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """Return a byte-level byte-pair tokenizer trained on `texts`, set up like GPT-2's but with its own padding token.

    `decode(encode(text)) == text` for any text, and the same texts in the same order give the same tokenizer.

    Args:
        texts: The training text, in pieces that no token crosses; or a data set with the column `text`.
        vocab_size: Number of ids, with the 256 bytes, `<|endoftext|>` (begin, end, unknown) and `<|pad|>`; fewer
            if the texts have no more pairs to join.
        model_max_length: Longest input of the model, for truncation.
    Raises:
        ValueError: If `vocab_size` has no room for the bytes and the special tokens, or `texts` are not strings.
    Source: Radford et al. 2019, section 2.2.

    >>> tokenizer = train_bpe_tokenizer(["the cat sat on the mat\\n"], vocab_size=260)
    >>> tokenizer.tokenize("the cat")
    ['t', 'he', 'Ġ', 'c', 'at']
    """
    tokenizer = _byte_level_pieces(texts, vocab_size, [END_OF_TEXT, "<|pad|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    roles = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
    return _with_roles(tokenizer, model_max_length, **roles, pad_token="<|pad|>")


def train_masking_tokenizer(
    texts: "Dataset | Iterable[str]", vocab_size: int, model_max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """Return a byte-level byte-pair tokenizer trained on `texts`, with the special tokens of BERT.

    A text is encoded as `[CLS] text [SEP]`, a pair as `[CLS] first [SEP] second [SEP]` with token types 0 and 1.

    Args: As for `train_bpe_tokenizer`; five special tokens have the first ids.
    Raises:
        ValueError: As `train_bpe_tokenizer`.

    >>> tokenizer = train_masking_tokenizer(["the cat sat on the mat\\n"], vocab_size=262)
    >>> tokenizer.convert_ids_to_tokens(tokenizer("the", "cat")["input_ids"])
    ['[CLS]', 't', 'h', 'e', '[SEP]', 'c', 'at', '[SEP]']
    """
    mask = AddedToken(MASKING_TOKENS["mask_token"], lstrip=True, special=True)  # takes the space before it, as words do
    tokenizer = _byte_level_pieces(texts, vocab_size, [*list(MASKING_TOKENS.values())[:-1], mask])
    ends = [(MASKING_TOKENS[name], tokenizer.token_to_id(MASKING_TOKENS[name])) for name in ("cls_token", "sep_token")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return _with_roles(tokenizer, model_max_length, **{**MASKING_TOKENS, "mask_token": mask}, model_input_names=inputs)


def train_joint_bpe(
    pairs_or_texts: "Dataset | Iterable[str]", vocab_size: int, *, model_max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """Return a byte-level byte-pair tokenizer trained on both sides of pairs, for an encoder and its decoder.

    `</s>` ends each encoded text, and `decode(ids, skip_special_tokens=True)` gives any text back as it was. A text
    that has the name of a special token, such as `</s>`, in it is encoded like other text.

    Args:
        pairs_or_texts: The training split, with the columns `source` and `target`; or texts.
        vocab_size: Number of ids, with `<pad>` (0), `</s>` (1), `<unk>` (2) and the 256 bytes; fewer if the texts have
            no more pairs of tokens to join.
        model_max_length: Longest input of the model, for truncation.
    Raises:
        ValueError: As `train_bpe_tokenizer`.
    Departs: fairseq joins characters of words that Moses cut; we join bytes, so nothing is unknown and nothing is lost.
        Its models that write a text at once have `<s>` before source and text too; ours have the end alone.

    >>> from datasets import Dataset
    >>> pairs = Dataset.from_dict({"source": ["der Hund sah den Hund"], "target": ["the dog saw the dog"]})
    >>> tokenizer = train_joint_bpe(pairs, vocab_size=270)
    >>> tokenizer.convert_ids_to_tokens(tokenizer("der dog")["input_ids"])
    ['d', 'e', 'r', 'Ġdog', '</s>']
    """
    from hf_targets.data.token_rows import Dataset, texts_of  # models, which import this file, need no data sets

    texts = pairs_or_texts
    if isinstance(texts, Dataset):
        batches = texts_of(texts, "source", "target")
        texts = chain.from_iterable(sources + targets for sources, targets in batches)
    tokenizer = _byte_level_pieces(texts, vocab_size, ["<pad>", "</s>", "<unk>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    roles = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    inputs = ["input_ids", "attention_mask"]
    return _with_roles(tokenizer, model_max_length, **roles, model_input_names=inputs, split_special_tokens=True)


def word_level_tokenizer(texts: "Dataset | Iterable[str]") -> PreTrainedTokenizerFast:
    """Return a tokenizer with an id for each whitespace-separated word of `texts`, the most frequent word first.

    The end of a line is the word `<eos>`, a word that `texts` does not have is `<unk>`, as is `<unk>` itself: the
    convention of the published word-level perplexities on the Penn Treebank and WikiText. Words as frequent as each
    other are in alphabetical order; `<unk>`, `<eos>` and last of all `<pad>` follow where `texts` has none.

    Raises:
        ValueError: If `texts` have no words, or are not several strings.
    Source: Mikolov et al. 2010 (Penn Treebank), Merity et al. 2017 (WikiText).

    >>> tokenizer = word_level_tokenizer(["the cat\\n", "the dog\\n"])
    >>> tokenizer.get_vocab() == {"<eos>": 0, "the": 1, "cat": 2, "dog": 3, "<unk>": 4, "<pad>": 5}
    True
    >>> tokenizer("the mat\\n")["input_ids"]
    [1, 4, 0]
    """
    counts = Counter(word for text in _several(texts) for word in text.replace("\n", f" {END_OF_LINE} ").split())
    if not counts:
        raise ValueError("a word-level tokenizer needs words, and the texts have none; give it the training split")
    words = sorted(counts, key=lambda word: (-counts[word], word))
    words += [word for word in (UNKNOWN_WORD, END_OF_LINE, PAD_WORD) if word not in counts]
    tokenizer = Tokenizer(models.WordLevel({word: id_ for id_, word in enumerate(words)}, unk_token=UNKNOWN_WORD))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(f"[{_ONLY_PYTHON_SPACES}]"), " "),
            normalizers.Replace("\n", f" {END_OF_LINE} "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = {"unk_token": UNKNOWN_WORD, "eos_token": END_OF_LINE, "pad_token": PAD_WORD}
    # else "<unk>" would be cut out of a word such as "<unk>-like"
    return _with_roles(tokenizer, None, **roles, split_special_tokens=True)


def check_fast(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError if a tokenizer is a slow one, which does not tell the characters of each token."""
    if not tokenizer.is_fast:
        raise ValueError(
            f"words and phrases are found by the characters of tokens, and {type(tokenizer).__name__} is a slow one "
            "without them; load it with AutoTokenizer, or convert it"
        )


def encode(texts: list[str], tokenizer: PreTrainedTokenizerBase, **options: Any) -> tuple[list[list[int]], list[Any]]:
    """Return the ids of each text without special tokens around it, and the characters [start, end) of each token."""
    check_fast(tokenizer)
    encoded = tokenizer(
        texts,
        add_special_tokens=False,
        return_attention_mask=False,
        return_offsets_mapping=True,
        verbose=False,
        **options,
    )
    return encoded["input_ids"], encoded["offset_mapping"]


def special_token_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of all special tokens, those without a role included, such as the end of a turn in a chat.

    `tokenizer.all_special_ids` has only those with a role: begin, end, padding and so on.
    """
    marked = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(tokenizer.all_special_ids) | marked


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a SHA-256 of a tokenizer's pieces, of their ids, and of its ids for a probe text.

    Two tokenizers with one fingerprint give an id the same meaning. Special tokens count only as pieces: their roles,
    such as the padding token, do not change the fingerprint.
    """
    size, fingerprint = _FINGERPRINTS.get(tokenizer, (None, ""))
    if size != len(tokenizer):
        pieces = sorted(tokenizer.get_vocab().items())
        probe = tokenizer([_PROBE], add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        fingerprint = sha256(json.dumps([pieces, probe[0]]).encode()).hexdigest()
        _FINGERPRINTS[tokenizer] = (len(tokenizer), fingerprint)
    return fingerprint


def _byte_level_pieces(texts: Any, vocab_size: int, special_tokens: Sequence[str | AddedToken]) -> Tokenizer:
    """Return byte-level byte-pair pieces; special tokens have the first ids, and the 256 bytes follow."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(special_tokens):
        raise ValueError(
            f"vocab_size must be at least {len(alphabet) + len(special_tokens)} (each byte and the special tokens), "
            f"got {vocab_size}; raise it"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_several(texts), trainer)
    return tokenizer


def _with_roles(tokenizer: Tokenizer, model_max_length: int | None, **options: Any) -> PreTrainedTokenizerFast:
    if model_max_length is not None:
        options["model_max_length"] = model_max_length
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def _several(texts: Any) -> Iterator[str]:
    """Yield several texts, or those in the column `text` of a data set."""
    columns = getattr(texts, "column_names", None)
    if isinstance(texts, (str, dict)) or (columns is not None and "text" not in columns):
        raise ValueError(
            f"texts must be several strings, or a data set with the column text, got a {type(texts).__name__}"
            f"{f' with {columns}' if columns else ''}; give [text], splits['train'] or rows[column]"
        )
    for text in texts if columns is None else texts["text"]:
        if not isinstance(text, str):
            raise ValueError(f"a text must be a string, got {text!r:.80} among texts; leave it out, or give its text")
        yield text
