"""Progress bars: what they count, and when there are none."""

import pytest
from datasets import Dataset
from transformers.utils import logging

from hf_targets import PhraseVocabulary, TokenNgrams, train_bpe_tokenizer
from hf_targets.data.blocks import pack_blocks
from hf_targets.data.progress import progress
from hf_targets.evaluation.perplexity import perplexity_of_blocks
from hf_targets.masked_diffusion.perplexity_bound import perplexity_bound
from tests.masked_diffusion.models import make_mdlm
from tests.tiny_models import make_backbone

TEXTS = ["the cat sat on the mat\n", "a dog saw the cat\n", "the mat is flat and the cat is fat\n"] * 3
TOKENIZER = train_bpe_tokenizer(TEXTS, vocab_size=300)
BLOCKS = pack_blocks(Dataset.from_dict({"text": TEXTS}), TOKENIZER, 8)
WORK = {
    "mining phrases": (lambda: PhraseVocabulary(TOKENIZER).add_documents(TEXTS, TokenNgrams()), len(TEXTS)),
    "measuring perplexity": (
        lambda: perplexity_of_blocks(make_backbone("gpt2", vocab_size=len(TOKENIZER)).eval(), BLOCKS),
        len(BLOCKS),
    ),
    "measuring the bound": (
        lambda: perplexity_bound(make_mdlm(), [{"input_ids": [1, 2, 3]}] * 5, num_draws=1, batch_size=2),
        5,
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_a_bar_counts_all_of_the_work_by_its_name_unless_bars_are_switched_off(name, monkeypatch, capfd):
    monkeypatch.setattr("hf_targets.data.progress.SECONDS_BEFORE_A_BAR", 0.0)
    logging.enable_progress_bar()
    bars, real = [], logging.tqdm

    def keep(*args, **kwargs):
        bars.append(real(*args, **kwargs))
        return bars[-1]

    monkeypatch.setattr(logging, "tqdm", keep)
    work, total = WORK[name]
    work()
    bar = bars[0]
    assert name.startswith(bar.desc.removesuffix(": ")) and bar.unit.strip()
    assert (bar.n, bar.total) == (total, total) and bar.disable  # as tqdm says that it is closed
    capfd.readouterr()
    logging.disable_progress_bar()
    try:
        work()
    finally:
        logging.enable_progress_bar()
    assert "%|" not in capfd.readouterr().err


def test_a_part_of_other_work_work_that_is_soon_done_and_other_processes_have_no_bar(monkeypatch, capfd):
    with progress(3, "quick work", unit="step") as bar:
        bar.update(3)
    monkeypatch.setattr("hf_targets.data.progress.SECONDS_BEFORE_A_BAR", 0.0)
    with progress(1, "the whole", unit="step") as whole:
        with progress(1, "a part", unit="step") as part:
            part.update(1)
        whole.update(1)
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 1)
    with progress(1, "another process", unit="step") as bar:
        bar.update(1)
    told = capfd.readouterr().err
    assert "the whole" in told and not any(name in told for name in ("a part", "quick", "another"))
