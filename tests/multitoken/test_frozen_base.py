"""Text that a frozen model writes, and its stored states, from which heads learn what they learn from the model."""

import shutil

import pytest
import torch
from accelerate import cpu_offload
from datasets import Dataset
from scipy import stats

from hf_targets import MultiTokenForCausalLM, MultiTokenTrainer, MultiTokenTrainingArguments
from hf_targets.maths.losses import IGNORED
from hf_targets.multitoken.frozen_base import StoredStates, write_texts
from tests.tiny_models import VOCAB, make_backbone, token_ids

FIRST, END = 5, 0


@pytest.fixture
def sample(tmp_path):
    """Return the columns of written texts."""

    def write(model=None, prompts=7, first=FIRST, **wanted):
        sizes = {"block_size": 12, "batch_size": 3, **wanted}
        prompts = [[first]] * prompts if isinstance(prompts, int) else prompts
        blocks = write_texts(model or make_backbone("gpt2"), prompts, tmp_path, **sizes)
        columns = blocks.with_format("torch")[:]
        assert {tuple(column.shape) for column in columns.values()} == {(len(prompts), sizes["block_size"])}
        return [columns[name] for name in ("input_ids", "attention_mask", "labels")]

    return write


@pytest.mark.parametrize("first", [FIRST, END])
@pytest.mark.parametrize("ends", [[END], [7, END, 8, 9]], ids=str)
@pytest.mark.parametrize("block_size", [2, 3, 25])
def test_a_text_reaches_up_to_its_end_token_and_padding_begins_right_behind_it(first, ends, block_size, sample):
    model = make_backbone("gpt2")
    model.generation_config.eos_token_id = ends
    ids, mask, labels = sample(model, 40, first, batch_size=40, block_size=block_size)
    lengths = []
    for row in ids.tolist():
        length = next((at + 1 for at, token in enumerate(row) if at and token in ends), block_size)
        assert set(row[length:]) <= {ends[0]}
        lengths.append(length)
    expected = torch.arange(block_size) < torch.tensor(lengths)[:, None]
    assert torch.equal(mask, expected.long())
    assert torch.equal(labels[:, 1:], ids.masked_fill(~expected, IGNORED)[:, 1:])
    assert (labels[:, 0] == IGNORED).all()  # of the prompt
    if block_size == 25:
        assert min(lengths) < block_size


def test_blocks_depend_on_the_seed_alone_and_leave_the_global_random_state_as_it_is(sample):
    model = make_backbone("gpt2")
    one = sample(model, seed=3)
    torch.manual_seed(1234)
    state = torch.random.get_rng_state()
    again, other = sample(model, seed=3), sample(model, seed=4)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(map(torch.equal, one, again))
    assert not torch.equal(one[0], other[0])
    assert len({tuple(row) for row in one[0].tolist()}) == 7  # batches go on with the seed


def test_without_an_end_token_every_block_is_full(sample):
    model = make_backbone("gpt2")
    model.generation_config.eos_token_id = None
    ids, mask, labels = sample(model, 20, batch_size=20, block_size=25)
    assert (ids == END).any() and mask.all()  # a token like any other here
    assert torch.equal(labels[:, 1:], ids[:, 1:])


def test_texts_depend_on_the_weights_and_not_on_how_the_model_would_otherwise_generate(sample, tmp_path):
    plain, changed = make_backbone("gpt2"), make_backbone("gpt2")
    changed.generation_config.update(top_k=2, temperature=0.1, repetition_penalty=5.0, min_length=9)
    one, other = sample(plain), sample(make_backbone("gpt2", 1))
    assert not torch.equal(one[0], other[0])
    shutil.rmtree(tmp_path)  # so that the same texts are written anew
    assert all(map(torch.equal, one, sample(changed))) and changed.generation_config.top_k == 2


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_words_are_drawn_from_all_that_the_model_predicts_at_a_temperature(temperature, sample):
    model = make_backbone("gpt2")
    with torch.no_grad():
        logits = model(torch.tensor([[FIRST]])).logits[0, -1].double()
    ids, _, _ = sample(model, 4000, batch_size=4000, block_size=2, temperature=temperature)
    counts, wanted = torch.bincount(ids[:, 1], minlength=VOCAB), (logits / temperature).softmax(dim=0) * 4000
    order = wanted.argsort(descending=True)
    kept = int((wanted >= 10).sum()) - 1  # the rest counts together
    observed, expected = ([*each[order][:kept].tolist(), each[order][kept:].sum().item()] for each in (counts, wanted))
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_prompts_of_any_length_are_gone_on_from_as_if_each_were_alone_and_kept_texts_are_read(sample):
    model, prompts = make_backbone("llama"), [[5, 6, 7, 8], [9], [10, 11]]
    cold = {"temperature": 1e-4, "batch_size": 2}
    ids, mask, labels = sample(model, prompts, **cold)
    for row, prompt in enumerate(prompts):
        (alone,), (kept,), (targets,) = sample(model, [prompt], temperature=1e-4)
        size = int(mask[row].sum())
        assert torch.equal(ids[row, :size], alone[:size]) and size <= int(kept.sum())
        assert alone[: len(prompt)].tolist() == prompt and (labels[row, : len(prompt)] == IGNORED).all()
        assert torch.equal(targets[len(prompt) : size], ids[row, len(prompt) : size])
    model.generate = None  # so that nothing can be written anew
    assert all(map(torch.equal, sample(model, prompts, **cold), (ids, mask, labels)))


def test_texts_longer_than_the_positions_and_prompts_without_room_are_refused(sample):
    for given, word in (
        ({"block_size": 65}, "block_size"),
        ({"prompts": [[5], []]}, "prompts"),
        ({"prompts": [[1] * 12]}, "prompts"),
        ({"prompts": 0}, "none|got 0"),
    ):
        with pytest.raises(ValueError, match=word):
            sample(**given)
    sample(prompts=1, block_size=64)


def test_texts_are_kept_for_the_same_model_prompts_and_settings_alone(sample, tmp_path):
    two, half = make_backbone("gpt2"), make_backbone("gpt2").bfloat16()
    two.generation_config.eos_token_id = [END, 7]
    others = [{"first": 6}, {"temperature": 2.0}, {"block_size": 4}, {"batch_size": 2}, {"seed": 1}]
    for given in ({}, {"model": two}, {"model": half}, *others):
        sample(**{"prompts": 2, "block_size": 3, **given})
    assert len(list(tmp_path.iterdir())) == 8


def test_stored_states_are_those_of_a_model_and_its_rows_and_a_file_cut_short_is_written_anew(tmp_path):
    base, other = make_backbone("llama").eval(), make_backbone("llama", 1).eval()
    mask = [[1] * 6, [0, 0, 1, 1, 1, 1], [1] * 6]
    rows = Dataset.from_dict({"input_ids": token_ids(3, 6).tolist(), "attention_mask": mask})
    same = rows.add_column("labels", [[IGNORED] * 6] * 3).add_column("num_words", [5] * 3)
    seen = rows.remove_columns("attention_mask").add_column("attention_mask", [[1] * 6] * 3)
    cases = [(base, rows), (base, same), (base, seen), (other, rows), (make_backbone("llama").eval().bfloat16(), rows)]
    for again in range(2):
        for model, data in cases:
            told = data.select_columns(["input_ids", "attention_mask"]).with_format("torch")[:]
            with torch.no_grad():
                expected = model.base_model(**told)[0]
            found = StoredStates(model, data, tmp_path, batch_size=2)
            assert len(found) == 3
            for row, states in zip(found, expected, strict=True):
                torch.testing.assert_close(row["last_hidden_state"], states)
        files = list(tmp_path.iterdir())
        assert len(files) == 4
        for file in files if not again else ():
            file.write_bytes(file.read_bytes()[:-8])


@pytest.mark.parametrize(("target", "draft_vocab_size"), [("difference", None), ("embedding", 20)])
def test_heads_learn_from_stored_states_what_they_learn_from_the_model(target, draft_vocab_size, tmp_path, sample):
    base = make_backbone("llama").eval()
    rows = write_texts(base, [[FIRST]] * 6, tmp_path, block_size=12)
    learnt = []
    for stored in (False, True):
        torch.manual_seed(0)
        model = MultiTokenForCausalLM.from_base(base, ngram_size=3, target=target, draft_vocab_size=draft_vocab_size)
        model.backbone.requires_grad_(False)
        told = {"per_device_train_batch_size": 2, "max_steps": 4, "head_learning_rate": 0.01, "report_to": []}
        args = MultiTokenTrainingArguments(str(tmp_path / "out"), save_strategy="no", use_cpu=True, **told)
        data = StoredStates(base, rows, tmp_path) if stored else rows
        trainer = MultiTokenTrainer(model=model, args=args, train_dataset=data)
        trainer.train()
        assert {group["initial_lr"] for group in trainer.optimizer.param_groups} == {0.01}  # as the log shows
        learnt.append(list(model.heads.parameters()))
    assert all(map(torch.equal, *learnt))
    assert not any(map(torch.equal, learnt[0], MultiTokenForCausalLM.from_base(base, ngram_size=3).heads.parameters()))
    assert len(list(tmp_path.glob("states-*"))) == 1


def test_kept_states_are_of_a_model_s_settings_too_and_never_of_its_dropout_or_place(tmp_path):
    rows = write_texts(make_backbone("gpt2"), [[FIRST]] * 3, tmp_path, block_size=12)
    settings = ({}, {"layer_norm_epsilon": 0.3}, {"resid_pdrop": 0.5})
    models = [make_backbone("gpt2", **each).train() for each in settings]
    cpu_offload(models[2])
    kept = [StoredStates(model, rows.with_format("torch"), tmp_path)[:]["last_hidden_state"] for model in models]
    assert torch.equal(kept[0], kept[2]) and not torch.allclose(kept[0], kept[1])
    written = [write_texts(model, [[FIRST]] * 3, tmp_path / "other", block_size=12)[:] for model in models]
    assert written[0] == written[2] and all(model.training for model in models)
