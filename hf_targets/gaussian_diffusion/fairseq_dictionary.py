"""Vocabularies of fairseq: the tokenizer that a `dict.txt` describes."""

import os
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
"""The first four ids of each fairseq vocabulary."""

_OVERWRITE = " #fairseq:overwrite"
"""Ends a line whose piece may be there already: it gets a new id."""


def fairseq_tokenizer(dictionary: str | os.PathLike[str]) -> PreTrainedTokenizerFast:
    """Return the tokenizer of a fairseq vocabulary, for text that is already cut into its pieces.

    A text is its pieces with spaces between them, such as "a sle@@ eping dog", as `subword-nmt apply-bpe` writes them.
    `<s>` and `</s>` are put around each text, as for fairseq's non-autoregressive models. `decode` joins the pieces to
    words again. A piece that is not in the vocabulary becomes `<unk>`.

    Args:
        dictionary: The `dict.txt` that `fairseq-preprocess` wrote: a piece and its count on each line.
    Raises:
        ValueError: If a line has another form, a piece comes twice, or the file is empty.
    """
    ids = {token: id_ for id_, token in enumerate(SPECIAL_TOKENS)}
    lines = Path(dictionary).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    for number, line in enumerate(lines if any(lines) else [], start=1):
        piece, _, count = line.removesuffix(_OVERWRITE).rpartition(" ")
        if not piece or not count.isdecimal():
            raise ValueError(
                f'line {number} of {dictionary} must be a piece and its count, such as "the 1042", got {line!r}'
            )
        if piece in ids and not line.endswith(_OVERWRITE):
            raise ValueError(f"line {number} of {dictionary} has {piece!r}, which is there already")
        ids[piece] = len(SPECIAL_TOKENS) + number - 1
    if len(ids) == len(SPECIAL_TOKENS):
        raise ValueError(f"{dictionary} has no pieces; give the dict.txt that fairseq-preprocess wrote")
    begin, pad, end, unknown = SPECIAL_TOKENS
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}", special_tokens=[(begin, ids[begin]), (end, ids[end])]
    )
    between = decoders.Replace(Regex("(?<!@@)$"), " "), decoders.Replace(Regex("@@$"), "")
    tokenizer.decoder = decoders.Sequence([*between, decoders.Fuse(), decoders.Replace(Regex(" $"), "")])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=begin,
        pad_token=pad,
        eos_token=end,
        unk_token=unknown,
        model_input_names=["input_ids", "attention_mask"],
    )
