"""A reader finds the best span of a context by definition, and nothing where that is better."""

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering, PreTrainedTokenizerFast
from transformers.modeling_outputs import QuestionAnsweringModelOutput

from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.evaluation.reader import ExtractiveReader

QUESTIONS = ["Who sat?", "Where did the dog sleep?", "Why?"]
CONTEXTS = ["The cat sat on the mat.", "A dog slept in the old house by the river.", "So."]
TOKENIZER = train_bpe_tokenizer([*QUESTIONS, *CONTEXTS], vocab_size=320)


def tokenizer() -> PreTrainedTokenizerFast:
    made = PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer, pad_token="<|endoftext|>")
    made.model_max_length = 64
    return made


def model(seed=0, **options) -> BertForQuestionAnswering:
    torch.manual_seed(seed)
    sizes = {"vocab_size": 330, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(**sizes, intermediate_size=16, initializer_range=2.0, max_position_embeddings=64, **options)
    return BertForQuestionAnswering(config).eval()


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
def test_answers_are_the_best_spans_in_any_batch(max_answer_tokens):
    found = []
    for seed in range(6):
        reader = ExtractiveReader(model(seed), tokenizer(), max_answer_tokens=max_answer_tokens, batch_size=2)
        expected = [by_definition(reader, *pair) for pair in zip(QUESTIONS, CONTEXTS, strict=True)]
        assert reader(QUESTIONS, CONTEXTS) == expected
        found += expected
    assert "" in found and any(found)


def test_where_the_first_token_scores_highest_there_is_no_answer(monkeypatch):
    reader = ExtractiveReader(model(), tokenizer())

    def scores(input_ids, **others):
        logits = torch.zeros(input_ids.shape)
        logits[:, 0] = 1.0
        return QuestionAnsweringModelOutput(start_logits=logits, end_logits=logits)

    monkeypatch.setattr(reader, "model", scores)
    monkeypatch.setattr("hf_targets.evaluation.reader.execution_device", lambda model: "cpu")
    assert reader(QUESTIONS, CONTEXTS) == ["", "", ""]


def test_a_reader_is_loaded_by_folder_and_checked(tmp_path):
    for part in (model(), tokenizer()):
        part.save_pretrained(tmp_path)
    loaded = ExtractiveReader.from_pretrained(str(tmp_path))
    assert loaded(QUESTIONS, CONTEXTS) == ExtractiveReader(model(), tokenizer())(QUESTIONS, CONTEXTS)
    with pytest.raises(ValueError, match=r"call model.eval\(\)"):
        ExtractiveReader(model().train(), tokenizer())
    with pytest.raises(ValueError, match="sizes must be at least 1, got batch_size=0"):
        ExtractiveReader(model(), tokenizer(), batch_size=0)
    with pytest.raises(ValueError, match=r"no trained reader: it has no weights for qa_outputs\.bias"):
        model().bert.save_pretrained(tmp_path / "bert")
        tokenizer().save_pretrained(tmp_path / "bert")
        ExtractiveReader.from_pretrained(str(tmp_path / "bert"))
    with pytest.raises(ValueError, match="there is no reader at 'no/such'"):
        ExtractiveReader.from_pretrained("no/such")


def test_the_side_of_the_padding_does_not_matter():
    left = tokenizer()
    left.padding_side = "left"
    answers = [ExtractiveReader(model(), made, batch_size=3)(QUESTIONS, CONTEXTS) for made in (tokenizer(), left)]
    assert answers[0] == answers[1] and any(answers[0])
