from hf_targets.phrases.highlighting import GeneratedText
from hf_targets.phrases.vocabulary.sources import PhraseSource
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from tests.phrases.models import WORDS
from tests.tiny_models import VOCAB

PHRASES = PhraseVocabulary(WORDS, vocab_size=VOCAB)
FIRST, SECOND, OTHER = PHRASES.add_token_ids(
    [[2, 3], [4, 5, 6], [7, 8]],
    sources=[[PhraseSource("a.txt", 0, 7)], [PhraseSource("a.txt", 9, 20), PhraseSource("b.txt", 0, 11)], []],
)


def test_spans_are_of_the_text_without_its_prompt_and_the_prompts_phrases_are_none_of_them():
    written = GeneratedText.of([9, OTHER, 10, FIRST, 11, SECOND], 3, PHRASES)
    assert written.prompt + written.text == PHRASES.decode([9, OTHER, 10, FIRST, 11, SECOND])
    assert [written.text[span.start : span.end] for span in written.spans] == [" w02 w03", " w04 w05 w06"]


def test_statistics_count_steps_tokens_and_the_documents_of_the_phrases_used():
    written = GeneratedText.of([9, 10, FIRST, 11, SECOND], 2, PHRASES)
    told = "3 phrases at hand, 2 used; 6 tokens in 3 steps, 2.00 tokens a step; 2 documents cited"
    assert written.statistics == told


def test_a_text_that_ends_at_once_has_no_steps():
    told = "3 phrases at hand, 0 used; 0 tokens in 0 steps, 0.00 tokens a step; 0 documents cited"
    assert GeneratedText.of([9], 1, PHRASES).statistics == told


def test_padding_at_the_end_does_not_count():
    pad, end = WORDS.pad_token_id, WORDS.eos_token_id
    padding = end if pad is None else pad
    row = [9, 10, FIRST, 11, end]
    assert GeneratedText.of([*row, padding, padding], 2, PHRASES) == GeneratedText.of(row, 2, PHRASES)
    assert GeneratedText.of([9, 10, padding], 3, PHRASES).num_steps == 0  # of the prompt
