import numpy as np

from hf_targets import DynamicVocabForCausalLM, PhraseVocabulary, train_bpe_tokenizer
from hf_targets.evaluation.continuations import Continuations, Prefix, continue_prefixes
from lab.continuations import ContinuationSettings, format_intervals, with_phrases
from tests.tiny_backbones import make_backbone

TOKENIZER = train_bpe_tokenizer(["the cat sat on the mat and the dog ran over the hill\n"] * 3, 300)


def test_phrases_are_counted_as_steps_and_texts_cut_to_the_tokens_asked_for():
    model = DynamicVocabForCausalLM.from_base(
        make_backbone("gpt2", vocab_size=len(TOKENIZER)), phrase_start="encoder"
    ).eval()
    vocabulary = PhraseVocabulary.from_token_ids([[40, 41, 42, 43]], TOKENIZER)
    prefixes = [Prefix([5, 6, 7], []), Prefix([8, 9, 10], []), Prefix([11, 12, 13], [])]
    prepare = with_phrases(model, lambda *_: vocabulary, ContinuationSettings(phrase_bias=1000.0))
    result = continue_prefixes(model, prefixes, prepare=prepare, new_tokens=10, batch_size=2)
    assert result.tokens == [[40, 41, 42, 43, 40, 41, 42, 43, 40, 41]] * 3
    assert result.num_steps == result.num_phrases == [3, 3, 3]
    assert len(result.seconds) == len(result.phrase_seconds) == 3


def continuations(texts, steps, phrases, seconds) -> Continuations:
    return Continuations(texts, steps, phrases, seconds, [0.0] * len(texts))


def test_a_difference_that_holds_at_every_prefix_is_found_though_prefixes_differ_more():
    random = np.random.default_rng(0)
    texts = [random.integers(0, 50, size=30).tolist() for _ in range(40)]
    steps = random.integers(40, 120, size=40).tolist()
    plain = continuations(texts, steps, [0] * 40, [1.0] * 40)
    ours = continuations(texts, [count - 2 for count in steps], [4] * 40, [1.0] * 40)
    table = format_intervals({"plain": [plain], "ours": [ours, ours]}, {"plain": [texts], "ours": [texts, texts]})
    heading, _, first, second, difference = table.splitlines()
    assert heading == "| model | diversity, % | steps | phrase_share, % |"
    assert difference.startswith("| ours - first | none (+0.00 to +0.00) | -2.00 to -2.00 | +")
    low, high = (float(end) for end in second.split("|")[3].split(" to "))
    assert low < np.mean(steps) - 2 < high and high - low > 5
    assert "| 0.00 to 0.00 |" in first


def test_one_prefix_has_no_interval():
    one = continuations([[1, 2, 3, 4]], [4], [0], [1.0])
    assert format_intervals({"plain": [one]}, {"plain": [one.tokens]}) == "One prefix has no interval."
