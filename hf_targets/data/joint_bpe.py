"""One byte-pair vocabulary for both languages of parallel text."""

from collections.abc import Iterable, Iterator, Mapping

from datasets import Dataset
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from hf_targets.data.pair_columns import pair_batches
from hf_targets.data.tokenization import byte_level_pieces

PAD = "<pad>"
END = "</s>"
UNKNOWN = "<unk>"


def train_joint_bpe(
    pairs_or_texts: Dataset | Iterable[str], vocab_size: int, *, model_max_length: int | None = None
) -> PreTrainedTokenizerFast:
    """Return a byte-level byte-pair tokenizer trained on both sides of pairs, for an encoder and its decoder.

    `</s>` ends each encoded text, and `decode(ids, skip_special_tokens=True)` gives any text back as it was. A text
    that has the name of a special token, such as `</s>`, in it is encoded like other text. The same pairs give the
    same tokenizer.

    Args:
        pairs_or_texts: The training split, with the columns `source` and `target`; or texts.
        vocab_size: Number of ids, with `<pad>` (0), `</s>` (1), `<unk>` (2) and the 256 bytes; fewer if the texts have
            no more pairs of tokens to join.
        model_max_length: Longest input of the model, for truncation.
    Raises:
        ValueError: If `vocab_size` has no room for the bytes and the special tokens, or the texts are one string or
            several splits.
    Departs: fairseq joins characters of words that Moses cut; we join bytes, so nothing is unknown and nothing is lost.
    Related: `train_bpe_tokenizer` makes the one of causal language models.

    >>> pairs = Dataset.from_dict({"source": ["der Hund sah den Hund"], "target": ["the dog saw the dog"]})
    >>> tokenizer = train_joint_bpe(pairs, vocab_size=270)
    >>> tokenizer.convert_ids_to_tokens(tokenizer("der dog")["input_ids"])
    ['d', 'e', 'r', 'Ġdog', '</s>']
    """
    if isinstance(pairs_or_texts, Mapping):
        raise ValueError(
            f"a vocabulary is made of the training split alone, got the splits {list(pairs_or_texts)}; give "
            f'pairs["train"]'
        )
    texts = _both_sides(pairs_or_texts) if isinstance(pairs_or_texts, Dataset) else pairs_or_texts
    tokenizer = byte_level_pieces(texts, vocab_size, [PAD, END, UNKNOWN])
    end = (END, tokenizer.token_to_id(END))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}", special_tokens=[end]
    )
    length = {} if model_max_length is None else {"model_max_length": model_max_length}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        model_input_names=["input_ids", "attention_mask"],
        split_special_tokens=True,
        **length,
    )


def _both_sides(pairs: Dataset) -> Iterator[str]:
    for sources, targets in pair_batches(pairs):
        yield from sources
        yield from targets
