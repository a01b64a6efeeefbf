import pytest
import torch

from hf_targets import (
    DynamicVocabForCausalLM,
    PhraseVocabulary,
    word_level_tokenizer,
)
from tests.phrases.models import WORDS, make_phrase_model, random_vocabulary, vocabulary_of
from tests.tiny_models import VOCAB, make_backbone, make_dynamic_model, make_vocabulary, phrase_batch, token_ids

GREEDY = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def test_an_index_of_another_encoder_or_of_other_phrases_is_refused_when_it_is_used():
    pytest.importorskip("faiss")
    model, vocabulary, ids = make_dynamic_model(), make_vocabulary(), token_ids(1, 5)
    index = model.index_phrases(vocabulary)
    model.generate(ids, phrases=vocabulary, phrase_index=index, **GREEDY)
    others = make_vocabulary((11, 12), (13, 14, 15), (16, 17), (18, 19))
    with pytest.raises(ValueError, match="build it anew with index_phrases"):
        model.generate(ids, phrases=others, phrase_index=index, **GREEDY)
    with torch.no_grad():
        model.phrase_encoder.input_projection[-1].weight.neg_()
    with pytest.raises(ValueError, match="build it anew with index_phrases"):
        model.generate(ids, phrases=vocabulary, phrase_index=index, **GREEDY)


def test_a_table_is_refused_once_a_phrase_of_it_was_removed_and_not_when_one_was_added():
    model, vocabulary = make_dynamic_model(), make_vocabulary()
    table = model.phrase_table(vocabulary)
    before = model.generate(token_ids(1, 5), phrases=table, **GREEDY)
    vocabulary.add_token_ids([[30, 31]])
    assert torch.equal(model.generate(token_ids(1, 5), phrases=table, **GREEDY), before)
    vocabulary.remove([VOCAB])
    with pytest.raises(ValueError, match="has changed since the table was made"):
        model.generate(token_ids(1, 5), phrases=table, **GREEDY)


def test_a_training_batch_takes_no_other_phrases():
    with pytest.raises(ValueError, match="brings its own phrases"):
        make_dynamic_model()(**phrase_batch(), phrases=make_vocabulary())


def test_beams_that_end_at_different_steps_can_be_decoded():
    model = make_phrase_model("gpt2")
    vocabularies = [random_vocabulary(), vocabulary_of([5, 6])]
    limits = {"max_new_static_tokens": 10, "num_beams": 3}
    output = model.generate(token_ids(2, 4), phrases=vocabularies, **limits, **{**GREEDY, "max_new_tokens": None})
    assert (output >= 0).all()
    for vocabulary, row in zip(vocabularies, output, strict=True):
        vocabulary.decode(row)


def test_vocabularies_of_another_tokenizer_are_refused(tmp_path):
    other = word_level_tokenizer([" ".join(f"q{number}" for number in range(VOCAB - 3)) + "\n"])
    model = DynamicVocabForCausalLM.from_base(make_backbone("gpt2"), tokenizer=WORDS).eval()
    theirs = PhraseVocabulary.from_token_ids([[5, 6]], other, vocab_size=VOCAB)
    model.save_pretrained(tmp_path)
    for wrapped in (model, DynamicVocabForCausalLM.from_pretrained(tmp_path)):
        wrapped.generate(token_ids(1, 5), phrases=vocabulary_of([5, 6]), **GREEDY)
        with pytest.raises(ValueError, match="the tokenizer of the model"):
            wrapped.generate(token_ids(1, 5), phrases=theirs, **GREEDY)
    with pytest.raises(ValueError, match="and of the other rows"):
        make_phrase_model("gpt2").generate(token_ids(2, 5), phrases=[vocabulary_of([5, 6]), theirs], **GREEDY)


def test_segments_beside_a_text_with_phrases_are_refused():
    batch = phrase_batch()
    with pytest.raises(ValueError, match="token_type_ids are not supported"):
        make_dynamic_model()(**batch, token_type_ids=torch.zeros_like(batch["input_ids"]))
