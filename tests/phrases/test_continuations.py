import pytest
import torch

from hf_targets import DynamicVocabForCausalLM, PhraseVocabulary, train_bpe_tokenizer
from hf_targets.evaluation.continuations import Prefix, continue_prefixes
from hf_targets.multitoken.draft_heads import load_base
from hf_targets.phrases.continuations import with_phrases
from hf_targets.phrases.settings import PhraseSettings
from hf_targets.phrases.text_comparison import load_model
from tests.tiny_backbones import make_backbone, token_ids
from tests.tiny_models import make_collator

TEXT = "the cat sat on the mat and the dog ran over the hill\n"
TOKENIZER = train_bpe_tokenizer([TEXT] * 3, 300)


def make_eager_model(wanted: int) -> tuple[DynamicVocabForCausalLM, PhraseVocabulary]:
    """Return a model that takes phrases alone, of `wanted` tokens each, after its first step."""
    backbone = make_backbone("gpt2", vocab_size=len(TOKENIZER))
    model = DynamicVocabForCausalLM.from_base(backbone).eval()
    vocabulary = PhraseVocabulary.from_token_ids([list(range(40, 40 + wanted))], TOKENIZER)
    return model, vocabulary


def prefer_phrases(input_ids, scores):
    scores[:, : len(TOKENIZER)] -= 1000
    return scores


def test_phrases_are_counted_as_steps_and_texts_cut_to_the_tokens_asked_for():
    model, vocabulary = make_eager_model(wanted=4)
    prefixes = [Prefix([5, 6, 7], []), Prefix([8, 9, 10], []), Prefix([11, 12, 13], [])]
    given = {"new_tokens": 10, "batch_size": 2, "logits_processor": [prefer_phrases]}
    result = continue_prefixes(model, prefixes, prepare=with_phrases(model, lambda tokens: vocabulary), **given)
    assert result.tokens == [[40, 41, 42, 43, 40, 41, 42, 43, 40, 41]] * 3
    assert result.num_steps == [3, 3, 3]
    assert result.num_phrases == [3, 3, 3]
    assert len(result.seconds) == len(result.phrase_seconds) == 3


def of_negatives(folder):
    TOKENIZER.save_pretrained(folder)
    settings = PhraseSettings(negatives=["generation"], negatives_model=folder)
    return make_collator(settings, TOKENIZER, [], len(TOKENIZER)).negatives[0].model


@pytest.mark.parametrize("load", [load_model, load_base, of_negatives])
def test_a_reformer_that_a_recipe_loads_reads_a_text_the_same_twice(load, tmp_path):
    make_backbone("reformer", hash_seed=None, attn_layers=["lsh", "lsh"]).save_pretrained(tmp_path)
    model, ids = load(str(tmp_path)), token_ids(2, 24)
    with torch.no_grad():
        assert torch.equal(model(ids).logits, model(ids).logits)
