"""Models of inference and readers judge as they do by definition, loaded by their folder."""

import pytest
import torch
from transformers import (
    BartConfig,
    BartForSequenceClassification,
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from hf_targets.data.tokenization import train_bpe_tokenizer
from lab.judges import AskedEntailment, Entailment, Reader, load_entailment, log_odds, shares_words

PAIRS = [("Title: Cats\nCats sleep all day.", "Cats sleep."), ("Dogs bark.", "Cats sleep."), ("A", "B c d e f g")]
QUESTIONS = ["Who sat?", "Where did the dog sleep?", "Why?"]
CONTEXTS = ["The cat sat on the mat.", "A dog slept in the old house by the river.", "So."]
TEXTS = [*QUESTIONS, *CONTEXTS, *(" ".join(pair) for pair in PAIRS)]
TRAINED = train_bpe_tokenizer(TEXTS, vocab_size=320)
SIZES = {"vocab_size": 330, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 16, "max_position_embeddings": 64}
LABELS = dict(enumerate(("contradiction", "Entailment", "neutral")))


def tokenizer(**options) -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(
        tokenizer_object=TRAINED.backend_tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>", **options
    )
    made.model_max_length = 64
    return made


def classifier(labels=LABELS, seed=0) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    return BertForSequenceClassification(BertConfig(**SIZES, initializer_range=1.0, id2label=labels)).eval()


def reading_model(seed=0) -> BertForQuestionAnswering:
    torch.manual_seed(seed)
    return BertForQuestionAnswering(BertConfig(**SIZES, initializer_range=2.0)).eval()


def saved(folder, model):
    for part in (model, tokenizer()):
        part.save_pretrained(folder)
    return str(folder)


def test_shared_words_entail_where_they_are_most():
    pairs = [("a b c d", "A, B, c, d e"), ("a b c d", "a b x y z"), ("a", "?!")]
    assert [shares_words(*pair) for pair in pairs] == [True, False, False]


def test_a_classifier_entails_where_that_is_its_most_probable_label(tmp_path):
    tokens, found = tokenizer(), set()
    for seed in range(4):
        model = classifier(seed=seed)
        expected = [int(model(**tokens(*pair, return_tensors="pt")).logits.argmax()) == 1 for pair in PAIRS]
        assert [Entailment(model, tokens)(*pair) for pair in PAIRS] == expected
        found.update(expected)
    loaded = load_entailment(saved(tmp_path, model))
    assert [loaded(*pair) for pair in PAIRS] == expected and len(found) == 2
    with pytest.raises(ValueError, match="yes, no"):
        Entailment(classifier(labels={0: "yes", 1: "no"}), tokens)


def test_a_sequence_to_sequence_model_entails_where_it_writes_one(monkeypatch):
    config = T5Config(vocab_size=330, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model, tokens, read = T5ForConditionalGeneration(config).eval(), tokenizer(), []
    one, zero = tokens("1")["input_ids"], tokens("0")["input_ids"]

    def generate(input_ids, attention_mask, **options):
        assert options == {"max_new_tokens": 10, "do_sample": False}
        read.append(tokens.decode(input_ids[0]))
        return torch.tensor([one if "bark" in read[-1] else zero])

    monkeypatch.setattr(model, "generate", generate)
    assert [Entailment(model, tokens)(*pair) for pair in PAIRS] == [False, True, False]
    assert read[1] == "premise: Dogs bark. hypothesis: Cats sleep."


def test_a_causal_model_entails_where_yes_is_more_probable_than_after_no_text(tmp_path):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=330, n_embd=16, n_layer=1, n_head=2, initializer_range=1.0))
    judge = load_entailment(saved(tmp_path, model))
    assert isinstance(judge, AskedEntailment)
    said = [judge(*pair) for pair in PAIRS]
    for (premise, hypothesis), entails in zip(PAIRS, said, strict=True):
        asked = [judge.question.format(premise=one, hypothesis=hypothesis) for one in (premise, "N/A")]
        with_text, without = log_odds(judge.model, judge.tokenizer, asked, ("Yes", "No"))
        assert entails == (with_text > without)


def test_an_encoder_decoder_that_classifies_is_a_classifier(tmp_path):
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "max_position_embeddings": 64}
    config = BartConfig(vocab_size=330, **sizes, id2label=LABELS, eos_token_id=tokenizer().eos_token_id)
    assert load_entailment(saved(tmp_path, BartForSequenceClassification(config)))._label == 1


def test_no_more_is_read_than_a_model_has_positions_beyond_its_padding():
    sizes = SIZES | {"max_position_embeddings": 34}
    model = RobertaForSequenceClassification(RobertaConfig(**sizes, pad_token_id=1, num_labels=3, id2label=LABELS))
    tokens = tokenizer()
    tokens.model_max_length = 10**30
    long = " ".join(["Cats sleep all day."] * 60)
    assert isinstance(Entailment(model, tokens)(long, "Cats sleep."), bool)


def by_definition(reader, question, context):
    """Try every span."""
    encoded = reader.tokenizer(question, context, return_offsets_mapping=True, return_tensors="pt")
    offsets, parts = encoded.pop("offset_mapping")[0], encoded.sequence_ids(0)
    output = reader.model(**encoded)
    start, end = output.start_logits[0], output.end_logits[0]
    places = [place for place, part in enumerate(parts) if part == 1]
    spans = [(a, b) for a in places for b in places if 0 <= b - a < reader.max_answer_tokens]
    first, last = max(spans, key=lambda span: float(start[span[0]] + end[span[1]]))
    if float(start[first] + end[last]) <= float(start[0] + end[0]):
        return ""
    return context[offsets[first][0] : offsets[last][1]]


@pytest.mark.parametrize("max_answer_tokens", [1, 3, 15])
@torch.no_grad()
def test_answers_are_the_best_spans(max_answer_tokens):
    found = []
    for seed in range(6):
        reader = Reader(reading_model(seed), tokenizer(), max_answer_tokens)
        expected = [by_definition(reader, *pair) for pair in zip(QUESTIONS, CONTEXTS, strict=True)]
        assert reader(QUESTIONS, CONTEXTS) == expected
        found += expected
    assert "" in found and any(found)
