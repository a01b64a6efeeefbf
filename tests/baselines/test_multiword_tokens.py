"""Multiword tokens: old pieces put together, whatever the tokenizer, and rows that are the means of theirs."""

import json

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer, CTRLTokenizer, GemmaTokenizer, GPT2Tokenizer
from transformers import PreTrainedTokenizerFast as Fast

from hf_targets import add_lora, transfer_vocabulary, word_level_tokenizer
from hf_targets.baselines.multiword_tokens import multiword_tokenizer
from tests.small_tokenizers import BPE, LEGACY, METASPACE, SENTENCES, WORDS, WRITTEN
from tests.tiny_backbones import VOCAB, make_backbone, token_ids
from tests.tiny_masked import make_masked_backbone
from tests.tiny_seq2seq import make_pair_backbone

LLAMA_3 = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PARTS = [*WRITTEN, " sat on", " the cat", " a dog saw", " a dog", "\n the cat", "s", "'s", "3", "<0x0A>", "▁", "<pad>"]


def byte_level(*steps, **options):
    """Return `BPE` with other pre-tokenizers, and one added token outside of the model's vocabulary."""
    tokenizer = Tokenizer.from_str(BPE.backend_tokenizer.to_str())
    last = pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last])
    tokenizer.add_special_tokens(["<pad>"])
    return Fast(tokenizer_object=tokenizer, pad_token="<pad>")


def rebuilt(cls, tokenizer, vocab=(), merges=()):
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    return cls(vocab=model["vocab"] | dict(vocab), merges=[*merges, *map(tuple, model["merges"])])


def trained(model, trainer, decoder, *steps, normalizer=None, added=(), **options):
    tokenizer = Tokenizer(model(**options))
    tokenizer.normalizer = normalizer or normalizers.Sequence([])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Sequence(list(steps)), decoder
    tokenizer.train_from_iterator(SENTENCES, trainer(vocab_size=80, special_tokens=["<unk>"], show_progress=False))
    tokenizer.add_special_tokens(list(added))
    return Fast(tokenizer_object=tokenizer, unk_token="<unk>")


UNIGRAM = (models.Unigram, lambda **options: trainers.UnigramTrainer(**options, unk_token="<unk>"))
METASPACE_STEPS = decoders.Metaspace(), pre_tokenizers.Metaspace()
SPLIT, BERT = pre_tokenizers.WhitespaceSplit(), pre_tokenizers.BertPreTokenizer()
PIECES = (models.WordPiece, trainers.WordPieceTrainer, decoders.WordPiece())
TOKENIZERS = {
    "byte-level": BPE,
    "gpt2": rebuilt(GPT2Tokenizer, BPE),
    "llama3": byte_level(pre_tokenizers.Split(Regex(LLAMA_3), "isolated"), use_regex=False),
    "smollm2": byte_level(pre_tokenizers.Digits(individual_digits=True)),
    "prefix": byte_level(add_prefix_space=True),
    "llama": METASPACE,
    "gemma": rebuilt(GemmaTokenizer, METASPACE, vocab={"▁▁": len(METASPACE)}, merges=[("▁", "▁")]),
    "legacy": LEGACY,
    "marian": trained(*UNIGRAM, *METASPACE_STEPS),
    "t5": trained(*UNIGRAM, METASPACE_STEPS[0], SPLIT, METASPACE_STEPS[1], added=["<pad>", "<sep>"]),
    "bert": trained(*PIECES, BERT, normalizer=normalizers.BertNormalizer(), unk_token="<unk>"),
    "words": WORDS,
}
NEW = {name: multiword_tokenizer(tokenizer, SENTENCES, 30, max_words=4) for name, tokenizer in TOKENIZERS.items()}


@given(st.lists(st.sampled_from(PARTS), max_size=9).map("".join))
@example(text=" a dog<0x0A>")
@example(text="<0x0A> a dog  the cat's")
@pytest.mark.parametrize("name", TOKENIZERS)
def test_new_tokens_are_old_ones_put_together_with_their_characters_and_text(name, text):
    (new, pieces), options = NEW[name], {"add_special_tokens": False, "return_offsets_mapping": True}
    was, now = TOKENIZERS[name](text, **options), new(text, **options)
    spans = iter(was["offset_mapping"])
    parts = [pieces.get(number, [number]) for number in now["input_ids"]]
    assert [part for group in parts for part in group] == was["input_ids"]
    groups = [[next(spans) for _ in group] for group in parts]
    assert [(group[0][0], group[-1][1]) for group in groups] == now["offset_mapping"]
    assert new.decode(now["input_ids"]) == TOKENIZERS[name].decode(was["input_ids"])


@given(st.lists(st.sampled_from(["a", "dog", "saw", "the", "cat", "sat", "on", "flat", "mats"]), max_size=12))
@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_leftmost_and_of_those_the_longest_ngram_is_taken(name, words):
    new, pieces = NEW[name]
    ngrams = {new.decode([number]).strip(): number for number in pieces}
    text, expected = " ".join(["x", *words]), []
    while words:
        size = next((size for size in (4, 3, 2) if " ".join(words[:size]) in ngrams), 1)
        expected += [ngrams[" ".join(words[:size])]] if size > 1 else []
        words = words[size:]
    assert len(ngrams) == 30
    assert [number for number in new(text)["input_ids"] if number in pieces] == expected


FIFTY = word_level_tokenizer([*SENTENCES, " ".join(f"w{number}" for number in range(VOCAB - len(WORDS)))])
FAMILIES = {"gpt2": make_backbone, "llama": make_backbone, "phi": make_backbone}
FAMILIES |= {"marian": make_pair_backbone, "bert": make_masked_backbone}  # tied, untied, with biases of three kinds


@pytest.mark.parametrize("family", FAMILIES)
def test_new_rows_are_means_old_logits_stay_and_transformers_alone_loads_both(family, tmp_path):
    model, inputs = FAMILIES[family](family), {"input_ids": token_ids(2, 6)}
    for bias in (tensor for name, tensor in model.named_parameters() if name.endswith("bias")):
        torch.nn.init.normal_(bias)
    inputs |= {"decoder_input_ids": inputs["input_ids"]} if model.config.is_encoder_decoder else {}
    before, tied = model(**inputs).logits, model.get_input_embeddings().weight is model.get_output_embeddings().weight
    new, tokenizer = transfer_vocabulary(model, FIFTY, SENTENCES, 5)
    after, rows = new(**inputs).logits, new.get_input_embeddings().weight
    assert tied == (rows is new.get_output_embeddings().weight)
    assert after[..., :VOCAB].equal(before) and after.shape[-1] == len(tokenizer) == VOCAB + 5
    for number, parts in multiword_tokenizer(FIFTY, SENTENCES, 5)[1].items():
        torch.testing.assert_close(rows[number], rows[parts].mean(0))
        torch.testing.assert_close(after[..., number], after[..., parts].mean(-1), rtol=1e-4, atol=1e-4)
    new.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert type(model).from_pretrained(tmp_path).eval()(**inputs).logits.equal(after)
    assert AutoTokenizer.from_pretrained(tmp_path)(SENTENCES) == tokenizer(SENTENCES)


def test_settings_are_kept_spare_rows_are_used_and_tokens_can_be_added_twice():
    old = TOKENIZERS["llama3"]
    old.chat_template, old.padding_side, old.model_input_names = "{{ messages }}", "left", ["input_ids"]
    model, first = transfer_vocabulary(make_backbone("llama", vocab_size=len(old) + 4), old, SENTENCES, 3)
    model, second = transfer_vocabulary(model, first, SENTENCES, 9, max_words=5)
    assert model.config.vocab_size == len(second) == len(old) + 12
    for name in ("chat_template", "model_input_names", "padding_side", "name_or_path", "all_special_ids"):
        assert getattr(second, name) == getattr(old, name)
    text = "".join(SENTENCES) + "<pad>"
    assert second.decode(second(text)["input_ids"]) == text
    assert [first.decode(number) for number in range(len(old), len(first))] == [" sat on", " the cat", " a dog"]
    assert len(second(text)["input_ids"]) < len(first(text)["input_ids"]) < len(old(text)["input_ids"])


def test_what_cannot_be_done_is_refused():
    ends = trained(models.BPE, trainers.BpeTrainer, decoders.BPEDecoder(), SPLIT, end_of_word_suffix="</w>")
    for tokenizer, texts, options, word in [
        (BPE, SENTENCES, {"num_tokens": 1000}, "the texts have"),
        (BPE, ["a dog sat"], {}, "the texts have 0"),
        (BPE, SENTENCES, {"num_tokens": 0}, "num_tokens"),
        (BPE, SENTENCES, {"max_words": 6}, "max_words"),
        (BPE, "the cat", {}, "list"),
        (CTRLTokenizer.__new__(CTRLTokenizer), SENTENCES, {}, "slow"),
        (ends, SENTENCES, {}, "decode"),
        (FIFTY, SENTENCES, {"model": add_lora(make_backbone("gpt2"), 2)}, "adapters"),
        (BPE, SENTENCES, {}, "rows"),
    ]:
        model = options.pop("model", None) or make_backbone("gpt2")
        with pytest.raises(ValueError, match=word):
            transfer_vocabulary(model, tokenizer, texts, **{"num_tokens": 2, **options})
