import numpy as np
import pytest

from hf_targets.phrases.batches.collator import PhraseCollator
from hf_targets.phrases.mining import MINERS
from hf_targets.phrases.mining.miner import MiningTask
from hf_targets.phrases.mining.ngrams import TokenNgrams, WordNgrams
from tests.tiny_models import VOCAB, WORDS


class Pairs:
    """As one would add it from another package: every second token begins a phrase of two."""

    def spans(self, text):
        starts = np.arange(0, len(text) - 1, 2)
        return np.stack([starts, starts + 2], axis=1)

    @classmethod
    def for_task(cls, task):
        return cls()


@pytest.fixture
def registered():
    MINERS.register("pairs", Pairs)
    yield
    del MINERS._classes["pairs"]


@pytest.mark.usefixtures("registered")
def test_a_miner_from_outside_gives_a_training_its_phrases():
    miner = MINERS["pairs"].for_task(MiningTask(read_nothing))
    collator = PhraseCollator(WORDS, miner, vocab_size=VOCAB, min_gap=0, phrase_rate=1.0, negatives=[])
    batch = collator([{"input_ids": list(range(1, 9))}])
    assert isinstance(collator.miner, Pairs)
    assert (batch["phrase_targets"] >= VOCAB).sum() >= 2


def read_nothing():
    raise AssertionError("texts are read only by what needs them")


@pytest.mark.parametrize(("name", "cls"), [("words", WordNgrams), ("tokens", TokenNgrams)])
def test_windows_need_no_texts(name, cls):
    assert isinstance(MINERS[name].for_task(MiningTask(read_nothing)), cls)


def test_a_table_is_mined_from_the_texts_with_the_settings():
    task = MiningTask(lambda: [[1, 2, 3, 1, 2], [4, 1, 2]], max_tokens=2, min_count=3, excluded_ids=[4])
    assert MINERS["fmm"].for_task(task).phrases == [(1, 2)]


def test_parsing_takes_a_parser():
    with pytest.raises(ValueError, match="parser"):
        MINERS["parsing"].for_task(MiningTask(read_nothing))
