from hf_targets import DynamicVocabForCausalLM, PhraseVocabulary, train_bpe_tokenizer
from hf_targets.evaluation.continuations import Prefix, continue_prefixes
from lab.continuations import multiword_tokenizer, with_phrases
from tests.tiny_backbones import make_backbone

TOKENIZER = train_bpe_tokenizer(["the cat sat on the mat and the dog ran over the hill\n"] * 3, 300)


def prefer_phrases(input_ids, scores):
    scores[:, : len(TOKENIZER)] -= 1000
    return scores


def test_phrases_are_counted_as_steps_and_texts_cut_to_the_tokens_asked_for():
    model = DynamicVocabForCausalLM.from_base(make_backbone("gpt2", vocab_size=len(TOKENIZER))).eval()
    vocabulary = PhraseVocabulary.from_token_ids([[40, 41, 42, 43]], TOKENIZER)
    prefixes = [Prefix([5, 6, 7], []), Prefix([8, 9, 10], []), Prefix([11, 12, 13], [])]
    given = {"new_tokens": 10, "batch_size": 2, "logits_processor": [prefer_phrases]}
    result = continue_prefixes(model, prefixes, prepare=with_phrases(model, lambda *_: vocabulary), **given)
    assert result.tokens == [[40, 41, 42, 43, 40, 41, 42, 43, 40, 41]] * 3
    assert result.num_steps == result.num_phrases == [3, 3, 3]
    assert len(result.seconds) == len(result.phrase_seconds) == 3


def test_a_multiword_tokenizer_has_the_frequent_pairs_of_words_as_tokens_and_cuts_no_word(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    tokenizer = multiword_tokenizer(str(tmp_path), ["the mat the mat on the mat on the hill"], 1)
    assert tokenizer.tokenize("sat on the mat.")[-2].strip() == "the mat"
    assert not any("the mat" in token for token in tokenizer.tokenize("on the mats"))
