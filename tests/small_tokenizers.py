"""Small tokenizers of each family (byte-level pieces, SentencePiece in its two forms, whole words), and texts."""

import json

import pytest
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

from hf_targets.data.tokenization import train_bpe_tokenizer, word_level_tokenizer

SENTENCES = ["the cat sat on the mat, (the flat cat) sat\n", "a dog saw the cat; the dog sat on a flat mat\n"] * 4


def sentencepiece(*, legacy):
    """As Llama's: spaces are a sign, other characters without a piece are bytes."""
    space = "▁"
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence([normalizers.Prepend(space), normalizers.Replace(" ", space)])
    trained.pre_tokenizer = pre_tokenizers.Split(space, "merged_with_next")
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False)
    trained.train_from_iterator([text.strip() for text in SENTENCES], trainer)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    if not legacy:
        return LlamaTokenizer(vocab=model["vocab"], merges=merges)
    tokenizer = Tokenizer(models.BPE(model["vocab"], merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = trained.normalizer
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", left=1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


BPE = train_bpe_tokenizer(SENTENCES, vocab_size=300)
WORDS = word_level_tokenizer(SENTENCES)
METASPACE, LEGACY = sentencepiece(legacy=False), sentencepiece(legacy=True)
NAMES = ["bpe", "metaspace", "legacy", "words"]
every_tokenizer = pytest.mark.parametrize("tokenizer", [BPE, METASPACE, LEGACY, WORDS], ids=NAMES)
subword_tokenizer = pytest.mark.parametrize("tokenizer", [BPE, METASPACE, LEGACY], ids=NAMES[:3])
WRITTEN = ["the", " the", " cat", " sat", "mat", ",", "(", "é", "東京", " 🙂", "\n", " ", "  "]
TEXTS = st.lists(st.sampled_from(WRITTEN), max_size=12).map("".join)
