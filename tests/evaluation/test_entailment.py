"""Models of natural language inference and shared words say what entails what."""

import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.evaluation.entailment import LexicalEntailment, ModelEntailment
from tests.tiny_models import make_backbone

PAIRS = [("Title: Cats\nCats sleep all day.", "Cats sleep."), ("Dogs bark.", "Cats sleep."), ("A", "B c d e f g")]
TOKENIZER = train_bpe_tokenizer([" ".join(pair) for pair in PAIRS], vocab_size=300)
SIZES = {
    "vocab_size": 320,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def tokenizer() -> PreTrainedTokenizerFast:
    copied = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer, eos_token="<|endoftext|>")
    copied.pad_token = copied.eos_token
    copied.model_max_length = 64
    return copied


def classifier(labels=("contradiction", "Entailment", "neutral")) -> BertForSequenceClassification:
    torch.manual_seed(1)
    config = BertConfig(**SIZES, initializer_range=1.0, id2label=dict(enumerate(labels)), max_position_embeddings=64)
    return BertForSequenceClassification(config).eval()


def test_a_classifier_entails_where_that_is_its_most_probable_label():
    model, tokens = classifier(), tokenizer()
    expected = []
    for premise, claim in PAIRS:
        logits = model(**tokens(premise, claim, return_tensors="pt")).logits
        expected.append(bool(logits.argmax() == 1))
    assert len(set(expected)) == 2
    for batch_size in (1, 2, 8):
        assert ModelEntailment(model, tokens, batch_size=batch_size)(PAIRS) == expected
    assert ModelEntailment(model, tokens)([]) == []


def test_a_sequence_to_sequence_model_entails_where_it_writes_one(monkeypatch):
    config = T5Config(vocab_size=320, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model, tokens, read = T5ForConditionalGeneration(config).eval(), tokenizer(), []
    one, zero = tokens("1")["input_ids"], tokens("0")["input_ids"]
    assert len(one) == len(zero) == 1

    def generate(input_ids, attention_mask, **options):
        assert options == {"max_new_tokens": 10, "do_sample": False}
        texts = tokens.batch_decode(input_ids, skip_special_tokens=True)
        read.extend(texts)
        return torch.tensor([one if "bark" in text else zero for text in texts])

    monkeypatch.setattr(model, "generate", generate)
    assert ModelEntailment(model, tokens)(PAIRS) == [False, True, False]
    assert "premise: Dogs bark. hypothesis: Cats sleep." in read


def test_models_are_loaded_by_folder_and_kind(tmp_path):
    classifier().save_pretrained(tmp_path / "nli")
    tokenizer().save_pretrained(tmp_path / "nli")
    loaded = ModelEntailment.from_pretrained(str(tmp_path / "nli"))
    assert loaded(PAIRS) == ModelEntailment(classifier(), tokenizer())(PAIRS)


def test_wrong_models_are_refused_with_the_way_out(tmp_path):
    with pytest.raises(ValueError, match=r"no model of natural language inference at .*or judge by shared words"):
        ModelEntailment.from_pretrained(str(tmp_path / "none"))
    with pytest.raises(
        ValueError, match=r"must have a label 'entailment', and .* has yes, no; set model.config.id2label"
    ):
        ModelEntailment(classifier(("yes", "no")), tokenizer())
    with pytest.raises(ValueError, match=r"call model.eval\(\)"):
        ModelEntailment(classifier().train(), tokenizer())
    with pytest.raises(ValueError, match="must be at least 1, got 0 and None"):
        ModelEntailment(classifier(), tokenizer(), batch_size=0)


def test_shared_words_entail_from_the_given_share_on():
    pairs = [("a b c d", "A, B, c, d e"), ("a b c d", "a b x y z"), ("a", "?!")]
    assert LexicalEntailment(0.8)(pairs) == [True, False, False]
    assert LexicalEntailment(0.4)(pairs) == [True, True, False]
    with pytest.raises(ValueError, match=r"least_share must be in \(0, 1\], got 0"):
        LexicalEntailment(0)


def test_an_encoder_decoder_that_classifies_is_a_classifier(tmp_path):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    more = {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64}
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    eos = tokenizer().eos_token_id
    config = BartConfig(vocab_size=320, **sizes, **more, id2label=labels, eos_token_id=eos, pad_token_id=1)
    model = BartForSequenceClassification(config).eval()
    with torch.no_grad():
        model.classification_head.out_proj.bias[2] = 100.0
    tokens = tokenizer()
    tokens.pad_token = tokens.convert_ids_to_tokens(1)
    tokens.backend_tokenizer.post_processor = TemplateProcessing(
        single="$A </s>", pair="$A $B </s>", special_tokens=[("</s>", eos)]
    )
    for part in (model, tokens):
        part.save_pretrained(tmp_path)
    assert ModelEntailment.from_pretrained(str(tmp_path))(PAIRS) == [True, True, True]


def test_what_is_too_long_is_cut_in_the_premise_and_never_in_the_hypothesis_of_a_writer():
    config = T5Config(vocab_size=320, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model, tokens = T5ForConditionalGeneration(config).eval(), tokenizer()
    long = "Cats sleep all day. " * 60
    short = ModelEntailment(model, tokens, max_length=40)._shortened(long, "Cats sleep.")
    assert long.startswith(short) and 0 < len(short) < len(long)
    assert ModelEntailment(model, tokens)._shortened(long, "Cats sleep.") == long
    assert len(ModelEntailment(classifier(), tokens)([(long, "Cats sleep."), ("Cats.", long)])) == 2


def test_a_classifier_without_its_head_or_tokenizer_is_refused(tmp_path):
    classifier().bert.save_pretrained(tmp_path / "bert")
    tokenizer().save_pretrained(tmp_path / "bert")
    with pytest.raises(ValueError, match=r"no trained model of natural language inference: .* classifier\.bias"):
        ModelEntailment.from_pretrained(str(tmp_path / "bert"))
    classifier().save_pretrained(tmp_path / "nli")
    with pytest.raises(ValueError, match=r"a model of 320 tokens and a tokenizer of \d+, as where"):
        ModelEntailment.from_pretrained(str(tmp_path / "nli"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"there is no model of natural language inference at .*empty"):
        ModelEntailment.from_pretrained(str(tmp_path / "empty"))


@pytest.mark.parametrize("asked", [None, 1000])
def test_no_more_is_read_than_a_model_has_positions_beyond_its_padding(asked):
    config = RobertaConfig(**SIZES, max_position_embeddings=34, pad_token_id=1, num_labels=3)
    config.id2label = dict(enumerate(("contradiction", "entailment", "neutral")))
    tokens = tokenizer()
    tokens.model_max_length = 10**30
    long = " ".join(["Cats sleep all day."] * 60)
    model = RobertaForSequenceClassification(config).eval()
    assert len(ModelEntailment(model, tokens, max_length=asked)([(long, "Cats sleep.")])) == 1


def test_a_causal_model_is_no_judge():
    with pytest.raises(ValueError, match="must be a sequence-to-sequence model, got GPT2LMHeadModel"):
        ModelEntailment(make_backbone("gpt2"), None)
