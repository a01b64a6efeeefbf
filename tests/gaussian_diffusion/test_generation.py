from functools import partial

import pytest
import torch
from transformers import GenerationConfig

from hf_targets.gaussian_diffusion.generation import DEFAULTS, GaussianGenerationOutput
from tests.gaussian_diffusion.models import KINDS, make_difformer
from tests.tiny_seq2seq import EOS, PAD, pairs

every_kind = pytest.mark.parametrize("kind", KINDS)
BATCH = {name: pairs(3)[name] for name in ("input_ids", "attention_mask")}
LENGTHS = torch.tensor([6, 2, 4])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@every_kind
def test_a_batch_is_written_as_its_rows_alone(kind):
    model = make_difformer(kind).double()
    write = partial(model.generate, noise_factor=0.0)
    together = write(**BATCH, lengths=LENGTHS)
    for row, length in enumerate(LENGTHS.tolist()):
        source = {name: value[row : row + 1] for name, value in BATCH.items()}
        alone = write(**source, lengths=LENGTHS[row : row + 1])
        assert alone.shape == (1, length)
        assert torch.equal(together[row, :length], alone[0]) and (together[row, length:] == PAD).all()


@every_kind
def test_the_steps_are_those_of_the_process(kind):
    model = make_difformer(kind).double()
    found = model.generate(**BATCH, lengths=LENGTHS, generator=seeded(), num_reverse_steps=9)
    source, keep = model.encode(**BATCH), torch.arange(6) < LENGTHS[:, None]
    generator = seeded()
    state = torch.randn(3, 6, 8, generator=generator).double()
    predicted = torch.zeros_like(state)
    steps = model.process.steps_back(9, model.process.num_skipped_steps)
    assert len(steps) == 9 - (0 if model.config.noise_schedule == "continuous" else 5)
    for step in steps:
        predicted = model.denoise(state, predicted, torch.full((3,), step.time), keep, source).embeddings
        state = step.of_prediction * predicted + step.of_state * state
        if step.std:
            state = state + step.std * torch.randn(3, 6, 8, generator=generator).double()
    assert torch.equal(found, model.word_logits(predicted).argmax(dim=-1).masked_fill(~keep, PAD))


def test_padding_stands_behind_texts_alone():
    model = make_difformer()
    model.embed_tokens.weight.data[torch.arange(50) != PAD] *= 0.01
    texts = model.generate(**BATCH, lengths=LENGTHS, generator=seeded())
    assert (texts != PAD).sum(dim=1).tolist() == LENGTHS.tolist()


def test_clamping_makes_predictions_the_embeddings_of_words():
    model, seen = make_difformer().double(), []
    denoise = model.denoise
    model.denoise = lambda *arguments: seen.append(arguments[1]) or denoise(*arguments)
    model.generate(**BATCH, generator=seeded(), clamp=True)
    table = model.embedded(torch.arange(50))
    for previous in seen[1:]:
        assert torch.cdist(previous.flatten(0, 1), table).amin(dim=1).max() < 1e-5
    seen.clear()
    model.generate(**BATCH, generator=seeded())
    assert torch.cdist(seen[-1].flatten(0, 1), table).amin(dim=1).max() > 0.1


def test_lengths_may_be_a_list():
    model = make_difformer()
    texts = [model.generate(**BATCH, lengths=each, generator=seeded()) for each in (LENGTHS, LENGTHS.tolist())]
    assert torch.equal(*texts)


def test_inputs_is_another_name_of_the_source():
    model = make_difformer()
    named = model.generate(inputs=BATCH["input_ids"], generator=seeded())
    assert torch.equal(named, model.generate(BATCH["input_ids"], generator=seeded()))
    for given in ({}, {**BATCH, "inputs": BATCH["input_ids"]}):
        with pytest.raises(ValueError, match="input_ids or inputs"):
            model.generate(**given)


def test_candidates_have_the_lengths_around_the_most_probable_one():
    model = make_difformer()
    output = model.generate(**BATCH, num_lengths=4, num_noises=2, generator=seeded(), return_dict_in_generate=True)
    assert isinstance(output, GaussianGenerationOutput) and output.num_evaluations == 15
    assert output.candidates.shape[:2] == output.confidences.shape == (3, 8)
    source = model.encode(**BATCH)
    logits = torch.zeros(3, 20).scatter(1, torch.tensor([[0], [10], [19]]), 1.0)
    tried = model.lengths.candidates(logits, torch.tensor([[1] * 3, [1] * 3, [1] * 3]).repeat(1, 12), 3)
    assert tried.tolist() == [[25, 26, 27], [35, 36, 37], [39, 40, 40]]
    assert model.lengths.candidates(logits, torch.ones(3, 2).long(), 5)[0].tolist() == [2, 2, 2, 3, 4]
    best = model.lengths(source.hidden, source.mask).argmax(dim=1) - 10 + source.mask.sum(dim=1)
    expected = (best.clamp(2, 40)[:, None] + torch.tensor([-2, -2, -1, -1, 0, 0, 1, 1])).clamp(2, 40)
    written = (output.candidates != PAD).sum(dim=2)
    assert (written <= expected).all() and (written >= expected - 3).all()
    chosen = [sequence[sequence != PAD].tolist() for sequence in output.sequences]
    for row, sequence in enumerate(chosen):
        assert sequence in [candidate[candidate != PAD].tolist() for candidate in output.candidates[row]]


def test_each_way_to_select_takes_its_best():
    model = make_difformer()
    settings = {"num_lengths": 2, "num_noises": 3, "return_dict_in_generate": True}
    sure = model.generate(**BATCH, **settings, selection="confidence", generator=seeded())
    best = sure.confidences.argmax(dim=1)
    width = sure.sequences.shape[1]
    assert torch.equal(sure.sequences, sure.candidates[torch.arange(3), best][:, :width])

    def last(texts, sources, masks):
        assert texts.shape[0] == len(sources) == len(masks) == 18
        assert torch.equal(sources[::6], BATCH["input_ids"])
        return torch.arange(18.0)

    rescored = model.generate(**BATCH, **settings, selection="rescoring", rescorer=last, generator=seeded())
    assert torch.equal(rescored.sequences, rescored.candidates[:, -1][:, : rescored.sequences.shape[1]])


def test_settings_come_from_the_call_or_the_generation_config():
    model = make_difformer()
    assert model.generate(**BATCH, num_reverse_steps=7, return_dict_in_generate=True).num_evaluations == 2
    model.generation_config.num_reverse_steps = 8
    assert model.generate(**BATCH, return_dict_in_generate=True).num_evaluations == 3
    model.generation_config.num_skipped_steps = 0
    assert model.generate(**BATCH, return_dict_in_generate=True).num_evaluations == 8
    config = GenerationConfig(num_reverse_steps=9, return_dict_in_generate=True)
    assert model.generate(**BATCH, generation_config=config).num_evaluations == 9


def test_a_setting_of_none_is_as_configured():
    model = make_difformer("heads")
    model.generation_config.num_lengths, model.generation_config.num_reverse_steps = 2, 8
    expected = model.generate(**BATCH, generator=seeded(), return_dict_in_generate=True)
    none = dict.fromkeys([*DEFAULTS, "num_beams", "max_length"])
    output = model.generate(**BATCH, **none, generator=seeded(), return_dict_in_generate=True)
    assert torch.equal(output.candidates, expected.candidates) and output.num_evaluations == 3


def test_the_ensemble_mixes_in_what_heads_predict_from_earlier_positions():
    model = make_difformer("heads").double()
    generator = torch.Generator().manual_seed(0)
    state = torch.randn(1, 5, 8, generator=generator).double()
    source = model.encode(BATCH["input_ids"][:1])
    one = model.denoise(state, torch.zeros_like(state), torch.tensor([3.0]), torch.ones(1, 5).bool(), source)
    z, mixed = one.embeddings[0], model.ensemble(one, 0.4)[0]

    def head(n, position):
        return model.decoder.project_out_dim(model.heads.layers[n - 1](one.hidden[0, position]))

    torch.testing.assert_close(mixed[0], z[0])
    torch.testing.assert_close(mixed[1], 0.6 * z[1] + 0.4 * (head(1, 0) + z[0]))
    for t in (2, 3, 4):
        mean = (head(1, t - 1) + z[t - 1] + head(2, t - 2) + 2 * z[t - 1] - z[t - 2]) / 2
        torch.testing.assert_close(mixed[t], 0.6 * z[t] + 0.4 * mean)
    assert torch.equal(model.ensemble(one, 0.0), one.embeddings)
    texts = [model.generate(**BATCH, lengths=LENGTHS, generator=seeded(), ensemble_weight=w) for w in (0.0, 0.9)]
    assert not torch.equal(*texts)


def test_training_mode_generates_without_dropout_and_stays():
    model = make_difformer(dropout=0.5).train()
    texts = [model.generate(**BATCH, generator=seeded()) for _ in range(2)]
    assert torch.equal(*texts) and model.training


def test_a_trained_model_writes_what_it_was_trained_on():
    model = make_difformer("curve", initializer_range=0.05).train()
    batch = pairs(3)
    ends = (batch["labels"] != -100).sum(dim=1, keepdim=True) - 1
    labels = batch["labels"].scatter(1, ends, EOS)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for seed in range(75):
        rows = {name: value.repeat(2, 1) for name, value in {**batch, "labels": labels}.items()}
        model(**rows, generator=seeded(seed)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    texts = model.generate(**BATCH, generator=seeded(), num_noises=3)
    assert torch.equal(texts, labels.masked_fill(labels == -100, PAD))


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"generation_config": GenerationConfig(max_length=3)}, "max_length"),
        ({"generation_config": GenerationConfig(do_sample=True)}, "do_sample"),
        ({"num_lengths": 0}, "num_lengths"),
        ({"num_lengths": "3"}, "num_lengths must be an integer"),
        ({"num_reverse_steps": 20.0}, "num_reverse_steps must be an integer"),
        ({"num_skipped_steps": 2.5}, "num_skipped_steps must be an integer"),
        ({"num_reverse_steps": 2001}, "at most 2000"),
        ({"num_reverse_steps": 5}, "num_skipped_steps"),
        ({"noise_factor": -1.0}, "noise_factor"),
        ({"ensemble_weight": 0.4}, "heads"),
        ({"selection": "best"}, "selection"),
        ({"selection": "rescoring"}, "rescorer"),
        ({"lengths": torch.tensor([3, 3, 41])}, "lengths"),
        ({"lengths": torch.tensor([3, 3, 4]), "num_lengths": 2}, "num_lengths"),
    ],
)
def test_wrong_settings_are_told(settings, word):
    with pytest.raises(ValueError, match=word):
        make_difformer().generate(**BATCH, **settings)
