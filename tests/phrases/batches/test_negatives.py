import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPT2Config

from hf_targets.data.tokenization import train_bpe_tokenizer, word_level_tokenizer
from hf_targets.phrases.batches.collator import PhraseCollator
from hf_targets.phrases.batches.entries import PhrasedText
from hf_targets.phrases.batches.negatives import (
    CorpusRetrieval,
    Generation,
    InBatch,
    PreBatch,
    Prefixes,
    SelfRetrieval,
    negatives_by_name,
)
from hf_targets.phrases.mining.ngrams import TokenNgrams

WORDS = word_level_tokenizer(["a b c d e\n"])
V, END = len(WORDS), WORDS.eos_token_id
PLAIN = [id_ for id_ in range(V) if id_ not in WORDS.all_special_ids]
TOKENS = st.sampled_from([*PLAIN * 3, END])
TEXTS = st.lists(
    st.lists(TOKENS, min_size=1, max_size=24) | st.lists(TOKENS, min_size=16, max_size=32), min_size=1, max_size=4
)


def collator(negatives, miner=None, **settings):
    generator = torch.Generator().manual_seed(0)
    miner = miner or TokenNgrams(2, 4)
    return PhraseCollator(
        WORDS, miner, negatives=negatives, min_gap=1, phrase_rate=1.0, generator=generator, **settings
    )


def rows_of(texts):
    return [{"input_ids": ids} for ids in texts]


def tables(batch):
    """The phrases in each row's table."""
    entries = [tuple(batch["windows"][window, :length].tolist()) for window, length in batch["phrase_windows"].tolist()]
    return [{entries[number] for number in mask.nonzero().flatten()} for mask in batch["phrase_mask"]]


def golds(batch):
    """The phrases that stand in each row."""
    entries = batch["phrase_windows"].tolist()
    return [
        {tuple(batch["windows"][entries[id_ - V][0], : entries[id_ - V][1]].tolist()) for id_ in row if id_ >= V}
        for row in batch["phrase_input_ids"].tolist()
    ]


def prefixes(phrases):
    return {phrase[:length] for phrase in phrases for length in range(2, len(phrase))}


def extensions(phrases, text, num_successors):
    """Every p + its next 1..n tokens at every position where p stands in the text, but none with an end token."""
    return {
        tuple(text[index : index + len(phrase) + more])
        for phrase in phrases
        for index in range(len(text))
        for more in range(1, num_successors + 1)
        if tuple(text[index : index + len(phrase)]) == phrase
        and index + len(phrase) + more <= len(text)
        and END not in text[index : index + len(phrase) + more]
    }


class Successor:
    """A language model that counts on: after t comes t + 1, and it is asked how often."""

    training = False
    device = torch.device("cpu")

    def __init__(self):
        self.prompts = []

    def generate(self, input_ids, attention_mask, generation_config):
        self.prompts += [tuple(row) for row in input_ids.tolist()]
        assert attention_mask.shape == input_ids.shape
        assert attention_mask.all()
        ids = input_ids
        for _ in range(generation_config.max_new_tokens):
            ids = torch.cat([ids, (ids[:, -1:] + 1) % V], dim=1)
        return ids


def counted_on(phrases, num_successors):
    found = set()
    for phrase in phrases:
        for _ in range(num_successors):
            phrase = (*phrase, (phrase[-1] + 1) % V)
            if set(phrase) & set(WORDS.all_special_ids):
                break
            found.add(phrase)
    return found


@given(texts=TEXTS)
def test_in_batch_a_row_has_the_phrases_of_every_row(texts):
    batch = collator([InBatch()])(rows_of(texts))
    assert tables(batch) == [set().union(*golds(batch))] * len(texts)


@given(texts=TEXTS)
def test_prefixes_are_all_the_proper_ones_of_two_tokens_and_more(texts):
    batch = collator([Prefixes()])(rows_of(texts))
    assert tables(batch) == [phrases | prefixes(phrases) for phrases in golds(batch)]


@given(texts=TEXTS, num_successors=st.integers(1, 3))
def test_self_retrieval_takes_the_successors_at_every_position_of_the_same_text(texts, num_successors):
    batch = collator([SelfRetrieval(num_successors)])(rows_of(texts))
    expected = [
        phrases | extensions(phrases, text, num_successors) for phrases, text in zip(golds(batch), texts, strict=True)
    ]
    assert tables(batch) == expected


@given(texts=TEXTS, corpus=TEXTS, num_successors=st.integers(1, 3))
def test_corpus_retrieval_takes_the_successors_at_every_position_of_the_corpus(texts, corpus, num_successors):
    windows = {tuple(text[a : a + n]) for text in texts for a in range(len(text)) for n in (2, 3, 4)}
    known = [window for window in windows if len(window) > 1 and window[0] != PLAIN[0]]  # not all are in the table
    index = CorpusRetrieval.from_corpus(corpus, known, num_successors=num_successors, max_continuations=None)
    batch = collator([index])(rows_of(texts))
    assert tables(batch) == [
        phrases.union(*(extensions(phrases & set(known), text, num_successors) for text in corpus))
        for phrases in golds(batch)
    ]


def test_corpus_retrieval_keeps_the_first_distinct_continuations():
    corpus = [[1, 2, 3], [1, 2, 3], [1, 2], [1, 2, 4], [1, 2, 5]]
    index = CorpusRetrieval.from_corpus(corpus, [(1, 2)], num_successors=1, max_continuations=2)
    assert index.continuations == {(1, 2): ((1, 2, 3), (1, 2, 4))}


@given(texts=TEXTS, num_successors=st.integers(1, 3), batch_size=st.integers(1, 3))
def test_generation_takes_what_the_model_goes_on_with_and_asks_once(texts, num_successors, batch_size):
    model = Successor()
    source = Generation(model, num_successors=num_successors, batch_size=batch_size)
    collate = collator([source])
    batches = [collate(rows_of(texts)) for _ in range(2)]
    for batch in batches:
        assert tables(batch) == [phrases | counted_on(phrases, num_successors) for phrases in golds(batch)]
    assert sorted(model.prompts) == sorted(set().union(*(set().union(*golds(batch)) for batch in batches)))


def gpt2():
    """Return a model that would rather end its text than go on."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=V, n_embd=16, n_layer=1, n_head=2, n_positions=32, eos_token_id=END, initializer_range=1.0
    )
    model = AutoModelForCausalLM.from_config(config).double().eval()
    with torch.no_grad():
        model.transformer.ln_f.bias.fill_(1.0)
        model.lm_head.weight[END] = 10.0
    return model


def test_generation_is_the_greedy_text_of_a_real_model_that_never_ends_it():
    model = gpt2()
    batch = collator([Generation(model, num_successors=3)])(rows_of([PLAIN * 5, PLAIN[::-1] * 4]))
    for phrases, table in zip(golds(batch), tables(batch), strict=True):
        expected = set()
        for phrase in phrases:
            for _ in range(3):
                logits = model(torch.tensor([phrase])).logits[0, -1]
                assert logits.argmax() == END
                logits[END] = -torch.inf
                phrase = (*phrase, int(logits.argmax()))
                if set(phrase) & set(WORDS.all_special_ids):
                    break
                expected.add(phrase)
        assert expected
        assert table == phrases | expected


class Writer:
    """A language model that writes one text after every prompt, in the tokens of its own tokenizer."""

    training = False
    device = torch.device("cpu")

    def __init__(self, tokenizer, text):
        self.tokenizer, self.ids, self.read = tokenizer, tokenizer(text)["input_ids"], []

    def generate(self, input_ids, attention_mask, generation_config):
        self.read += self.tokenizer.batch_decode(input_ids)
        new = torch.tensor(self.ids[: generation_config.max_new_tokens])
        return torch.cat([input_ids, new.expand(len(input_ids), -1)], dim=1)


@pytest.mark.parametrize("num_successors", [1, 2, 3])
def test_a_model_with_another_tokenizer_reads_the_text_of_a_phrase_and_writes_text(num_successors):
    lines = ["the cat sat on the mat and saw a dog\n"] * 9
    ours, theirs = train_bpe_tokenizer(lines, vocab_size=290), train_bpe_tokenizer(lines, vocab_size=262)
    model = Writer(theirs, " sat on a mat")
    source = Generation(model, tokenizers=(ours, theirs), num_successors=num_successors)
    phrases = [tuple(ours(text)["input_ids"]) for text in (" the cat", " dog and a mat", " a dog")]
    texts = [PhrasedText((0, *phrase), [(1, 1 + len(phrase))]) for phrase in phrases]
    windows = source.windows(texts)
    assert sorted(model.read) == [" a dog", " dog and a mat", " the cat"]
    written = theirs.decode(model.ids[:num_successors])
    for phrase, window in zip(phrases, windows, strict=True):
        assert window.tokens == (*phrase, *ours(written)["input_ids"][:num_successors])
        assert window.shortest == len(phrase) + 1


def test_a_phrase_with_a_part_of_a_character_is_not_continued_by_another_tokenizer():
    ours, theirs = (train_bpe_tokenizer(["a cat\n"] * 9, vocab_size=size) for size in (258, 262))
    smile = tuple(ours("🙂")["input_ids"])
    source = Generation(Writer(theirs, " cat"), tokenizers=(ours, theirs))
    assert source.windows([PhrasedText((0, *smile), [(1, 3)])]) == []
    assert len(source.windows([PhrasedText((0, *smile), [(1, 5)])])) == 1


@given(batches=st.lists(TEXTS, min_size=1, max_size=4), num_batches=st.integers(1, 2))
def test_pre_batch_has_the_phrases_of_the_batches_before(batches, num_batches):
    collate = collator([PreBatch(num_batches)])
    before = []
    for texts in batches:
        batch = collate(rows_of(texts))
        older = set().union(*before[-num_batches:])
        older |= prefixes(older)
        assert tables(batch) == [phrases | older for phrases in golds(batch)]
        before.append(set().union(*golds(batch)))


@given(texts=TEXTS, corpus=TEXTS)
def test_sources_together_give_the_union_of_what_each_gives(texts, corpus):
    index = CorpusRetrieval.from_corpus(corpus, {tuple(text[:2]) for text in texts if len(text) > 1})
    sources = [Prefixes(), SelfRetrieval(), index, Generation(Successor())]
    alone = [tables(collator([source])(rows_of(texts))) for source in sources]
    together = tables(collator(sources)(rows_of(texts)))
    assert together == [set().union(*(each[row] for each in alone)) for row in range(len(texts))]
    shared = tables(collator([*sources, InBatch()])(rows_of(texts)))
    assert shared == [set().union(*together)] * len(texts)


def test_names_give_the_sources():
    index = CorpusRetrieval({})
    names = ["in_batch", "pre_batch", "prefix", "self_retrieval", "corpus_retrieval", "generation"]
    sources = negatives_by_name(names, num_successors=3, corpus_retrieval=index, language_model=Successor())
    assert list(map(type, sources)) == [InBatch, PreBatch, Prefixes, SelfRetrieval, CorpusRetrieval, Generation]
    assert sources[3].num_successors == sources[5].num_successors == 3
    assert sources[4] is index
    assert negatives_by_name([]) == ()


@pytest.mark.parametrize("name", ["prefixes", "corpus_retrieval", "generation"])
def test_a_name_without_a_source_is_refused(name):
    with pytest.raises(ValueError, match=name):
        negatives_by_name(["prefix", name])
