import pytest
import torch

from hf_targets import DynamicVocabForCausalLM, PhraseIndex, PhraseVocabulary, train_bpe_tokenizer
from hf_targets.retrieval.vector_index import VectorIndex
from tests.tiny_models import make_backbone

pytest.importorskip("faiss")
TOKENIZER = train_bpe_tokenizer(["the cat sat on the mat and the dog ran over the hill\n"] * 3, 300)


def make_model(seed=0):
    backbone = make_backbone("gpt2", seed, vocab_size=len(TOKENIZER))
    return DynamicVocabForCausalLM.from_base(backbone).eval()


def make_vocabulary():
    vocabulary = PhraseVocabulary.from_token_ids([[a, a + 1, b] for a in range(20, 40) for b in (50, 60)], TOKENIZER)
    vocabulary.remove([vocabulary.vocab_size + 3])
    return vocabulary


@pytest.mark.usefixtures("clear_choices")
def test_a_saved_index_of_all_phrases_generates_what_the_table_does(tmp_path):
    model, vocabulary = make_model(), make_vocabulary()
    model.index_phrases(vocabulary).save(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"phrase_index.faiss", "phrase_index.json"}
    index = PhraseIndex.load(tmp_path, fingerprint=model.phrase_fingerprint(vocabulary))
    ids = torch.tensor([[30, 31, 32]])
    given = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}

    def prefer_phrases(input_ids, scores):
        return scores + 3 * (torch.arange(scores.shape[1]) >= vocabulary.vocab_size)

    given["logits_processor"] = [prefer_phrases]
    expected = model.generate(ids, phrases=vocabulary, **given)
    found = model.generate(ids, phrases=vocabulary, phrase_index=index, num_neighbours=len(index), **given)
    assert torch.equal(found, expected)
    assert (expected >= vocabulary.vocab_size).any()


def test_an_index_of_another_encoder_or_other_phrases_is_refused(tmp_path):
    model, vocabulary = make_model(), make_vocabulary()
    model.index_phrases(vocabulary).save(tmp_path)
    for fingerprint in (make_model(seed=1).phrase_fingerprint(vocabulary), None):
        with pytest.raises(ValueError, match="phrase encoder"):
            PhraseIndex.load(tmp_path, fingerprint=fingerprint)
    with pytest.raises(ValueError, match=r"vector_index\.faiss .* missing"):
        VectorIndex.load(tmp_path)
    vocabulary.add_token_ids([[70, 71]])
    with pytest.raises(ValueError, match="phrases"):
        PhraseIndex.load(tmp_path, fingerprint=model.phrase_fingerprint(vocabulary))
