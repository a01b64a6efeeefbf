"""Tokenizers trained on a corpus: byte-level pieces for any text, whole words for the classic benchmarks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"
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


def train_bpe_tokenizer(
    texts: Iterable[str], vocab_size: int, model_max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """Return a byte-level byte-pair tokenizer trained on `texts`, set up like GPT-2's but with its own padding token.

    `decode(encode(text)) == text` for any text, and the same texts in the same order give the same tokenizer.

    Args:
        texts: The training text, in pieces that no token crosses.
        vocab_size: Number of ids, with the 256 bytes, `<|endoftext|>` (begin, end, unknown) and `<|pad|>`; fewer
            if the texts have no more pairs to join.
        model_max_length: Longest input of the model, for truncation.

    Raises:
        ValueError: If `vocab_size` has no room for the bytes and the special tokens, or `texts` is one string.

    Source: Radford et al. 2019, section 2.2.

    >>> tokenizer = train_bpe_tokenizer(["the cat sat on the mat\\n"], vocab_size=260)
    >>> tokenizer.tokenize("the cat")
    ['t', 'he', 'Ġ', 'c', 'at']
    """
    tokenizer = byte_level_pieces(texts, vocab_size, [END_OF_TEXT, PAD])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    length = {} if model_max_length is None else {"model_max_length": model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        pad_token=PAD,
        **length,
    )


def train_masking_tokenizer(
    texts: Iterable[str], vocab_size: int, model_max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """Return a byte-level byte-pair tokenizer trained on `texts`, with the special tokens of BERT.

    A text is encoded as `[CLS] text [SEP]`, a pair as `[CLS] first [SEP] second [SEP]` with token types 0 and 1.

    Args:
        texts, model_max_length: As for `train_bpe_tokenizer`.
        vocab_size: Number of ids, with the 256 bytes and five special tokens, which have the first ids.

    Raises:
        ValueError: As `train_bpe_tokenizer`.

    >>> tokenizer = train_masking_tokenizer(["the cat sat on the mat\\n"], vocab_size=262)
    >>> tokenizer.convert_ids_to_tokens(tokenizer("the", "cat")["input_ids"])
    ['[CLS]', 't', 'h', 'e', '[SEP]', 'c', 'at', '[SEP]']
    """
    mask = AddedToken(MASKING_TOKENS["mask_token"], lstrip=True, special=True)  # takes the space before it, as words do
    tokenizer = byte_level_pieces(texts, vocab_size, [*list(MASKING_TOKENS.values())[:-1], mask])
    ends = [(MASKING_TOKENS[name], tokenizer.token_to_id(MASKING_TOKENS[name])) for name in ("cls_token", "sep_token")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    length = {} if model_max_length is None else {"model_max_length": model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{**MASKING_TOKENS, "mask_token": mask},
        **length,
    )


def byte_level_pieces(texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str | AddedToken]) -> Tokenizer:
    """Return byte-level byte-pair pieces trained on `texts`, without anything around an encoded text.

    Args:
        special_tokens: They have the first ids, in their order; the 256 bytes follow.

    Raises:
        ValueError: If `vocab_size` has no room for the bytes and the special tokens, or `texts` is one string.
    """
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(special_tokens):
        raise ValueError(
            f"vocab_size must be at least {len(alphabet) + len(special_tokens)} (each byte and "
            f"{list(map(str, special_tokens))}), "
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
    tokenizer.train_from_iterator(_pieces(texts), trainer)
    return tokenizer


def word_level_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer with an id for each whitespace-separated word of `texts`, the most frequent word first.

    The end of a line is the word `<eos>`, a word that `texts` does not have is `<unk>`, as is `<unk>` itself: the
    convention of the published word-level perplexities on the Penn Treebank and WikiText. Words as frequent as each
    other are in alphabetical order; `<unk>`, `<eos>` and last of all `<pad>` follow where `texts` has none.

    Raises:
        ValueError: If `texts` has no words, or is one string.

    Source: Mikolov et al. 2010 (Penn Treebank), Merity et al. 2017 (WikiText).

    >>> tokenizer = word_level_tokenizer(["the cat\\n", "the dog\\n"])
    >>> tokenizer.get_vocab() == {"<eos>": 0, "the": 1, "cat": 2, "dog": 3, "<unk>": 4, "<pad>": 5}
    True
    >>> tokenizer("the mat\\n")["input_ids"]
    [1, 4, 0]
    """
    counts = Counter(word for text in _pieces(texts) for word in text.replace("\n", f" {END_OF_LINE} ").split())
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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN_WORD,
        eos_token=END_OF_LINE,
        pad_token=PAD_WORD,
        split_special_tokens=True,  # else "<unk>" would be cut out of a word such as "<unk>-like"
    )


def _pieces(texts: Iterable[str]) -> Iterable[str]:
    if isinstance(texts, str):
        raise ValueError("texts must be several strings, got one; put it in a list")
    return texts
