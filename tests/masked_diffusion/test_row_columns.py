"""Rows whose columns contradict each other, cut or of several length protocols, get no figure."""

import pytest
import torch
from datasets import Dataset, concatenate_datasets

from hf_targets.evaluation.perplexity import perplexity_of_blocks
from hf_targets.masked_diffusion.perplexity_bound import perplexity_bound
from hf_targets.masked_diffusion.rows import DiffusionCollator, sentence_rows
from tests.masked_diffusion.test_length_protocols import TOKENIZER, random_model
from tests.masked_diffusion.training import make_trainer
from tests.tiny_models import make_backbone

TEXTS = Dataset.from_dict({"text": ["a a a a a a a a\n", "a a a\n"]})
LISTS = ("input_ids", "attention_mask", "labels")
ONE = "rows must be of one length_protocol, and some have {} and others {}; make them all with the same length_protocol"
MIXTURES = pytest.mark.parametrize(
    ("protocols", "some", "others"),
    [
        (("predicted", "published"), "may_mask without num_tokens", "num_tokens without may_mask"),
        (("predicted", "conditional"), "neither num_tokens nor may_mask", "num_tokens without may_mask"),
        (("conditional", "published"), "may_mask without num_tokens", "neither num_tokens nor may_mask"),
    ],
)


def rows_of(protocol: str) -> Dataset:
    return sentence_rows(TEXTS, TOKENIZER, 12, protocol)


def cut(row: dict, length: int) -> dict:
    return {**row, **{name: row[name][:length] for name in LISTS}}


def evaluation(folder, rows):
    options = {"tokenizer": TOKENIZER, "per_device_eval_batch_size": 1, "ema_decay": None}
    return make_trainer(folder, random_model(), rows_of("predicted"), rows_of("predicted"), **options).evaluate(rows)


def refused(protocols, some, others):
    """Return two data sets of different protocols, and the pattern of what is said of them."""
    return [rows_of(name) for name in protocols], ONE.format(some, others)


def test_a_row_with_more_tokens_of_text_than_labels_has_been_cut_and_is_refused(tmp_path):
    model, (long, short) = random_model(), rows_of("predicted").to_list()
    says = r"num_tokens must be in \[0, 6\], the labels of row 1 that are no -100 or hidden, got 9; .*sentence_rows"
    hidden = {**long, "attention_mask": [1] * 6 + [0] * 6}
    uncounted = {**long, "labels": [*long["labels"][:6], *[-100] * 6]}
    for broken in (cut(long, 6), hidden, uncounted):
        with pytest.raises(ValueError, match=says):
            perplexity_bound(model, [short, broken])
        for rows in ([short, broken], Dataset.from_list([short, broken])):
            with pytest.raises(ValueError, match=says):
                evaluation(tmp_path, rows)
    with pytest.raises(ValueError, match=r"num_tokens must be in \[0, 12\], .* got -1"):
        perplexity_bound(model, [{**short, "num_tokens": -1}])


def test_a_row_that_is_cut_after_its_text_keeps_its_count(tmp_path):
    short = [cut(row, 6) for row in rows_of("predicted").to_list()[1:]]
    found = perplexity_bound(random_model(), short, num_draws=1)
    assert found.num_tokens == 4
    assert evaluation(tmp_path, short)["eval_nelbo"] == pytest.approx(found.nelbo, rel=1e-5)


@MIXTURES
def test_a_bound_is_of_rows_of_one_length_protocol(protocols, some, others):
    parts, says = refused(protocols, some, others)
    for rows in ([*parts[0], *parts[1]], [*parts[1], *parts[0]], concatenate_datasets(parts)):
        with pytest.raises(ValueError, match=says):
            perplexity_bound(random_model(), rows)


@MIXTURES
def test_a_batch_has_rows_of_one_length_protocol(protocols, some, others, tmp_path):
    parts, says = refused(protocols, some, others)
    without_tokenizer = make_trainer(tmp_path, random_model(), parts[0], parts[0]).data_collator
    for collate in (DiffusionCollator(TOKENIZER), without_tokenizer):
        for rows in ([*parts[0], *parts[1]], concatenate_datasets(parts).to_list()):
            with pytest.raises(ValueError, match=says):
                collate([cut(row, 4) for row in rows])


@MIXTURES
def test_a_trainer_has_rows_of_one_length_protocol_in_whatever_batches(protocols, some, others, tmp_path):
    parts, says = refused(protocols, some, others)
    mixed = concatenate_datasets(parts)
    with pytest.raises(ValueError, match="the train data: " + says):
        make_trainer(tmp_path, random_model(), mixed, tokenizer=TOKENIZER)
    for rows in (mixed, mixed.select([3, 0]), [*parts[0], *parts[1]]):
        with pytest.raises(ValueError, match=says):
            evaluation(tmp_path, rows)


def test_a_column_of_nothing_is_as_none():
    model, rows = random_model(), rows_of("conditional").to_list()
    empty = [{**row, "num_tokens": None, "may_mask": None} for row in rows]
    assert perplexity_bound(model, empty) == perplexity_bound(model, rows)
    assert DiffusionCollator(TOKENIZER)(empty).keys() == DiffusionCollator(TOKENIZER)(rows).keys()


def without_words(row: dict) -> dict:
    return {name: value for name, value in row.items() if name != "num_words"}


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first", "last"])
@pytest.mark.parametrize("lacking", [without_words, lambda row: {**row, "num_words": None}], ids=["missing", "None"])
def test_words_of_some_rows_make_no_figure(lacking, order, tmp_path):
    counted = rows_of("conditional").to_list()
    rows = [counted[0], lacking(counted[1])]
    rows = [rows[index] for index in order]
    says = f"either all rows have num_words or none, and 1 of 2 lack it, such as row {order.index(1)}; .*remove"
    joined = Dataset.from_list([{"num_words": None, **row} for row in rows])
    for measure, where in (
        (lambda: perplexity_bound(random_model(), rows), ""),
        (lambda: perplexity_of_blocks(make_backbone("gpt2", vocab_size=len(TOKENIZER)), rows), ""),
        (lambda: DiffusionCollator(TOKENIZER)(rows), ""),
        (lambda: evaluation(tmp_path, RowsOfUnknownColumns(rows)), ""),
        (lambda: evaluation(tmp_path, rows), "the evaluation data: "),
        (lambda: evaluation(tmp_path, joined), "the evaluation data: "),
    ):
        with pytest.raises(ValueError, match=where + says):
            measure()


class RowsOfUnknownColumns(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def test_rows_without_words_have_a_bound_for_each_token_alone(tmp_path):
    rows = [without_words(row) for row in rows_of("conditional").to_list()]
    assert perplexity_bound(random_model(), rows).per_word is None
    metrics = evaluation(tmp_path, rows)
    assert "eval_nelbo" in metrics and "eval_word_perplexity" not in metrics
