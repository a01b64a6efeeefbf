from functools import cache

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    BertConfig,
    DPRConfig,
    DPRContextEncoder,
    DPRQuestionEncoder,
    GPT2Config,
)

from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.retrieval.documents import DocumentRetriever
from hf_targets.retrieval.text_vectors import text_encoder

SHELF = {
    "short": "the cat",
    "long": "a dog saw the cat on the mat, and the mat was flat, and the cat was not",
    "middle": "stars and planets shine at night",
}
TEXTS = [*SHELF.values()]
TOKENIZER = train_bpe_tokenizer(TEXTS, vocab_size=300)
_BERT = {
    "vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 40,
}  # fmt: skip


@cache
def model_of(name):
    torch.manual_seed(1)
    if name == "gpt2":
        model = AutoModel.from_config(GPT2Config(vocab_size=300, n_embd=16, n_layer=2, n_head=2, n_positions=40))
    elif name == "bert":
        model = AutoModel.from_config(BertConfig(**_BERT))
    else:
        model = {"context": DPRContextEncoder, "question": DPRQuestionEncoder}[name](DPRConfig(**_BERT))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.5)  # so that texts differ visibly
    return model.eval()


@torch.no_grad()
def alone(name, text):
    """Return the states of one text, without any padding."""
    return model_of(name)(**TOKENIZER([text], return_tensors="pt", return_token_type_ids=False))


@pytest.mark.parametrize("batch_size", [1, 2, 32])
@pytest.mark.parametrize(
    ("name", "pooling", "pooled"),
    [
        ("bert", "mean", lambda output: output.last_hidden_state.mean(dim=1)),
        ("bert", "cls", lambda output: output.last_hidden_state[:, 0]),
        ("bert", "pooler", lambda output: output.pooler_output),
        ("gpt2", "mean", lambda output: output.last_hidden_state.mean(dim=1)),
        ("gpt2", "last", lambda output: output.last_hidden_state[:, -1]),
        ("context", "pooler", lambda output: output.pooler_output),
    ],
)
def test_a_texts_vector_is_that_of_the_text_alone(name, pooling, pooled, batch_size):
    encode = text_encoder(model_of(name), TOKENIZER, pooling=pooling, normalize=False, batch_size=batch_size)
    expected = torch.cat([pooled(alone(name, text)) for text in TEXTS])
    torch.testing.assert_close(encode(TEXTS), expected, atol=1e-4, rtol=1e-4)


def test_normalized_vectors_have_length_1_and_the_same_direction():
    plain = text_encoder(model_of("bert"), TOKENIZER, normalize=False)(TEXTS)
    unit = text_encoder(model_of("bert"), TOKENIZER)(TEXTS)
    torch.testing.assert_close(unit, plain / plain.norm(dim=1, keepdim=True))


def test_a_long_text_is_cut_where_the_model_ends_or_earlier():
    text = " ".join(["stars and planets"] * 50)
    ids = TOKENIZER(text)["input_ids"]
    assert len(ids) > 40
    for max_length, kept in ((None, 40), (7, 7)):
        encode = text_encoder(model_of("gpt2"), TOKENIZER, pooling="last", normalize=False, max_length=max_length)
        with torch.no_grad():
            expected = model_of("gpt2")(input_ids=torch.tensor([ids[:kept]])).last_hidden_state[:, -1]
        torch.testing.assert_close(encode([text]), expected, atol=1e-4, rtol=1e-4)


def test_a_document_is_nearest_to_its_own_text():
    pytest.importorskip("faiss")
    for name, pooling in (("bert", "mean"), ("gpt2", "last")):
        retriever = DocumentRetriever.from_model(SHELF, model_of(name), TOKENIZER, pooling=pooling)
        for own, row in zip(SHELF, retriever.retrieve(TEXTS, 3), strict=True):
            assert row[0] == (own, pytest.approx(1.0, abs=1e-5)) and len(row) == 3


def test_dpr_scores_are_products_of_question_and_context_vectors():
    pytest.importorskip("faiss")
    retriever = DocumentRetriever.from_model(
        SHELF,
        model_of("context"),
        TOKENIZER,
        query_model=model_of("question"),
        pooling="pooler",
        normalize=False,
    )
    question = alone("question", "planets at night").pooler_output[0]
    for name, score in retriever.retrieve(["planets at night"], 3)[0]:
        expected = float(question @ alone("context", SHELF[name]).pooler_output[0])
        assert score == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "max"}, "pooling must be one of mean, cls, last, pooler, got 'max'"),
        ({"batch_size": 0}, "must be at least 1, got 0 and None"),
        ({"max_length": 0}, "must be at least 1, got 32 and 0"),
    ],
)
def test_bad_settings_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        text_encoder(model_of("bert"), TOKENIZER, **arguments)


def test_a_model_in_training_a_text_without_tokens_and_missing_states_are_refused():
    config = GPT2Config(vocab_size=300, n_embd=16, n_layer=1, n_head=2, n_positions=40)
    with pytest.raises(ValueError, match=r"call model.eval\(\)"):
        text_encoder(AutoModel.from_config(config).train(), TOKENIZER)
    with pytest.raises(ValueError, match="a text must have a token"):
        text_encoder(model_of("gpt2"), TOKENIZER)(["fine", ""])
    head = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ValueError, match="needs a model with last_hidden_state, got logits"):
        text_encoder(head, TOKENIZER)(["fine"])
    with pytest.raises(ValueError, match="needs a model with last_hidden_state, got pooler_output"):
        text_encoder(model_of("context"), TOKENIZER)(["fine"])
