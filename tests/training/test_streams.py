"""A stream is trained on as the rows it has: each once in a pass, by all processes together, also when resumed."""

import logging
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset, concatenate_datasets
from transformers import TrainingArguments

from hf_targets import CosineRegularizedTrainer
from hf_targets.phrases.batches.negatives import PreBatch, Prefixes
from hf_targets.training.stream_loader import StreamLoader
from tests.model_cases import TRAINERS, every_trainer, trainers_that_owe
from tests.tiny_models import WORDS, make_backbone, make_collator
from tests.trainer_runs import SHORT, assert_same, losses, run_processes, weights, with_dropout

NUMBERS = Dataset.from_dict({"number": range(23)})
STEPS = {"save_strategy": "steps", "save_steps": 1, "optim": "sgd"}
STREAMS = {
    "one shard": NUMBERS.to_iterable_dataset(),
    "shards": NUMBERS.to_iterable_dataset(num_shards=5),
    "pairs": NUMBERS.to_iterable_dataset(num_shards=2).map(lambda rows: rows, batched=True, batch_size=4),
    "buffer": NUMBERS.to_iterable_dataset(num_shards=2).shuffle(seed=0, buffer_size=7),
}


def numbers(rows):
    return [row["number"] for row in rows]


def loader(stream, *, block_size=1, workers=0, rank=0, processes=1):
    sizes = {"batch_size": 3, "block_size": block_size, "drop_last": False, "seed": 0}
    places = {"rank": rank, "num_processes": processes, "options": {"num_workers": workers}}
    return StreamLoader(stream, numbers, numbers, **sizes, **places)


def one_pass(*args, **options):
    return list(loader(*args, **options)._pass())


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_a_stream_that_is_left_anywhere_goes_on_with_the_batches_of_an_unbroken_one(stream, block_size):
    whole = list(islice(loader(stream, block_size=block_size), 20))
    for count in range(1, 20):
        left = loader(stream, block_size=block_size)
        assert list(islice(left, count)) == whole[:count]
        again = loader(stream, block_size=block_size)
        again.load(left.state())
        assert list(islice(again, 20 - count)) == whole[count:]


@pytest.mark.parametrize("kind", ["shards", "concatenated"])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_go_on_in_turn(kind, workers):
    stream = STREAMS["shards"].filter(lambda row: row["number"] not in range(5, 15))  # some workers end early
    stream = concatenate_datasets([stream, STREAMS["pairs"]]) if kind == "concatenated" else stream
    whole = list(islice(loader(stream, block_size=2, workers=workers), 9))
    for count in range(1, 9):
        left = loader(stream, block_size=2, workers=workers)
        next(islice(left, count - 1, None))
        again = loader(stream, block_size=2, workers=workers)
        again.load(left.state())
        assert list(islice(again, 9 - count)) == whole[count:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_processes_and_workers_read_each_row_of_a_pass_once(stream, workers):
    for processes in (1, 2, 5) if not workers else (2,):
        parts = [one_pass(stream, rank=rank, processes=processes, workers=workers) for rank in range(processes)]
        assert sorted(number for part in parts for batch in part for number in batch) == list(range(23))


def test_a_pass_shuffles_within_blocks_and_another_one_in_another_way():
    found = [number for batch in islice(loader(STREAMS["one shard"], block_size=6), 16) for number in batch]
    passes = [found[:23], found[23:46]]
    for order in passes:
        assert order != list(range(23))
        assert all(sorted(order[begin : begin + 6]) == [*range(begin, min(begin + 6, 23))] for begin in (0, 6, 12, 18))
    assert passes[0] != passes[1]


def run(case, folder, rows, resume=None, **options):
    """Return the trainer, the rows of each batch, and the loss and epoch of each step, one after the other."""
    model = options.pop("model", None) or with_dropout(case.model.make())
    trainer, seen = case.make(folder, model, rows, **{**STEPS, **options}), []
    step = trainer.training_step

    def recorded(model, inputs, *args, **kwargs):
        seen.append(inputs["input_ids"].tolist())
        return step(model, inputs, *args, **kwargs)

    trainer.training_step = recorded
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return trainer, seen, [entry[name] for entry in losses(trainer) for name in ("loss", "epoch")]


def assert_resumes(case, folder, stream, at, **options):
    whole, seen, log = run(case, folder, stream, **options)
    resumed, later, later_log = run(case, folder, stream, folder / f"checkpoint-{at}", **options)
    num_batches = at * whole.args.gradient_accumulation_steps
    assert later == seen[num_batches:] and len(later) > 0
    assert later_log == log
    assert_same(weights(whole.model), weights(resumed.model), rtol=0, atol=0)
    end = folder / f"checkpoint-{whole.state.global_step}"
    finished, later, _ = run(case, folder, stream, end, **options)
    assert later == []
    assert_same(weights(whole.model), weights(finished.model), rtol=0, atol=0)
    saved = torch.load(end / "training_args.bin", weights_only=False)
    assert saved.ignore_data_skip is whole.args.ignore_data_skip is False


@every_trainer
def test_a_resumed_training_ends_as_an_unbroken_one_and_is_not_repeated(case, tmp_path):
    stream = case.rows(11).to_iterable_dataset(num_shards=2)
    assert_resumes(case, tmp_path, stream, 4, max_steps=5, **_buffer(case))


def _buffer(case):
    return {} if case is TRAINERS["awd_lstm"] else {"shuffle_buffer_size": 3}  # its text keeps its order


@pytest.mark.parametrize(
    "options",
    [
        {"dataloader_num_workers": 2, "gradient_accumulation_steps": 2, "per_device_train_batch_size": 2},
        {"gradient_accumulation_steps": 3, "per_device_train_batch_size": 2, "max_steps": 3},
    ],
)
def test_a_training_with_workers_and_steps_of_several_batches_is_resumed(options, tmp_path):
    stream = TRAINERS["multitoken"].rows(19).to_iterable_dataset(num_shards=3)
    assert_resumes(TRAINERS["multitoken"], tmp_path, stream, 2, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_phrases_of_earlier_batches_are_negatives_after_resuming(workers, tmp_path, monkeypatch):
    case, stream = TRAINERS["phrases"], TRAINERS["phrases"].rows(32).to_iterable_dataset(num_shards=2)
    given = {"negatives": [Prefixes(), PreBatch(2)], "phrase_rate": 0.5, "min_gap": 1}
    monkeypatch.setattr("tests.phrases.cases.make_collator", lambda: make_collator(**given))
    assert_resumes(case, tmp_path, stream, 3, dataloader_num_workers=workers, per_device_train_batch_size=2)


def test_the_trainer_of_any_model_with_cosine_regularisation_is_resumed(tmp_path):
    case = TRAINERS["multitoken"]

    class Plain:
        model = SimpleNamespace(make=lambda: make_backbone("gpt2"))

        def make(self, folder, model, rows, **options):
            args = TrainingArguments(str(folder), report_to="none", **{**SHORT, **options})
            return CosineRegularizedTrainer(model, args, train_dataset=rows)

    stream = case.rows(11).remove_columns("num_words").to_iterable_dataset()
    assert_resumes(Plain(), tmp_path, stream, 2)


@trainers_that_owe("the steps of its rows")
def test_a_stream_takes_the_steps_of_its_rows_and_evaluates_as_they_do(case, tmp_path):
    found = []
    for convert in (lambda rows: rows, lambda rows: rows.to_iterable_dataset()):
        trainer, seen, _ = run(case, tmp_path, convert(case.rows(12)), max_steps=3)
        metrics = trainer.evaluate(convert(case.evaluated(7)))
        kept = {name: metrics[f"eval_{name}"] for name in case.metrics}
        found.append((seen, [entry["loss"] for entry in losses(trainer)], kept))
    assert found[0] == found[1]


def without_padding(batches):
    return sorted([id_ for id_ in row if id_ not in (0, WORDS.pad_token_id)] for batch in batches for row in batch)


def train_in_order(case, folder, batch, num_rows=13, **options):
    stream = case.rows(num_rows).to_iterable_dataset()
    return run(case, folder, stream, model=case.model.make(), per_device_train_batch_size=batch, **options)


_TWO = """
import sys, torch
from tests.model_cases import TRAINERS
from tests.trainer_runs import weights
from tests.training.test_streams import _buffer, run, train_in_order

folder, found = sys.argv[1], {}
for name, case in TRAINERS.items():
    trainer, seen, log = train_in_order(case, f"{folder}/{name}", 2, ddp_backend="gloo")
    found[name] = weights(trainer.model), seen, log
case, options = TRAINERS["multitoken"], {"ddp_backend": "gloo", "max_steps": 6, "per_device_train_batch_size": 2}
stream, options["shuffle_buffer_size"] = case.rows(13).to_iterable_dataset(num_shards=2), 3
starts = None, f"{folder}/shards/checkpoint-3"
parts = [run(case, f"{folder}/shards", stream, start, **options)[1:] for start in starts]
torch.save((found, parts), f"{folder}/{trainer.args.process_index}.pt")
"""


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Return what each of two processes saw, of all trainers: most of the time is their start."""
    folder = tmp_path_factory.mktemp("two")
    run_processes(_TWO, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.mark.parametrize("name", TRAINERS)
def test_two_processes_read_each_row_once_and_take_the_steps_of_one(name, two_processes, tmp_path):
    case = TRAINERS[name]
    trainer, seen, log = train_in_order(case, tmp_path, 4)
    (one, rows, one_log), (_, others, _) = (found[name] for found, _ in two_processes)
    if name != "awd_lstm":
        assert len(rows) == len(others) == 4
        both, whole = without_padding([*rows, *others[:3]]), without_padding(seen)  # the last batch has no target
        assert both == whole and len(both) == 13
    if "the steps of its rows" not in case.lacks:
        assert_same(one, weights(trainer.model), rtol=1e-4, atol=1e-6)
        assert one_log == pytest.approx(log, rel=1e-4)


def test_two_processes_are_resumed_within_the_second_pass(two_processes):
    for _, ((seen, log), (later, later_log)) in two_processes:
        assert later == seen[3:] and len(later) == 3
        assert later_log == log


def test_a_stream_that_ends_early_is_read_again_with_a_warning(caplog, tmp_path):
    case = TRAINERS["multitoken"]
    for max_steps, told in ((3, 0), (7, 1)):
        with caplog.at_level(logging.WARNING, "hf_targets.training.stream_loader"):
            _, seen, _ = run(case, tmp_path, case.rows(12).to_iterable_dataset(), max_steps=max_steps)
        assert sum("ended before max_steps" in record.message for record in caplog.records) == told
    assert seen[:3] == seen[3:6] and seen[6] == seen[0]


def test_streams_that_cannot_be_read_on_are_refused(tmp_path):
    case, rows = TRAINERS["multitoken"], TRAINERS["multitoken"].rows(12)
    stream = rows.to_iterable_dataset(num_shards=2)
    with pytest.raises(ValueError, match="must have rows"):
        run(case, tmp_path, stream.filter(lambda row: False))
    with pytest.raises(ValueError, match="max_steps has to be specified"):
        run(case, tmp_path, stream, max_steps=-1)
    run(case, tmp_path, stream, max_steps=2)
    with pytest.raises(ValueError, match=r"\(1, 1, 1\), got \(1, 2, 1\)"):
        run(case, tmp_path, stream, tmp_path / "checkpoint-1", dataloader_num_workers=2)
    _, anew, _ = run(case, tmp_path, stream, tmp_path / "checkpoint-1", ignore_data_skip=True, max_steps=2)
    assert anew == [rows["input_ids"][:4]]
    (tmp_path / "checkpoint-1" / "stream_state_0.json").unlink()
    with pytest.raises(ValueError, match="begin anew with ignore_data_skip"):
        run(case, tmp_path, stream, tmp_path / "checkpoint-1")
