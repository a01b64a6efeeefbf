import copy

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM

from hf_targets import DifformerConfig, DifformerForConditionalGeneration
from hf_targets.gaussian_diffusion import model as model_file
from hf_targets.gaussian_diffusion.configuration import PRESETS
from hf_targets.maths.bsplines import inverse_matrix
from tests.gaussian_diffusion.models import KINDS, LATENT, make_difformer, noisy_pairs

every_kind = pytest.mark.parametrize("kind", KINDS)


def always(model, *, reads_itself: bool):
    """Let the decoder read its own prediction always, or never."""
    model._uniforms = lambda count, generator: torch.full((count,), 0.0 if reads_itself else 1.0)
    return model


def test_generation_settings_and_the_tied_matrix_come_back(tmp_path):
    model = make_difformer()
    model.generation_config.num_lengths = 3
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert type(again) is DifformerForConditionalGeneration and again.generation_config.num_lengths == 3
    assert again.lm_head.weight is again.embed_tokens.weight


def test_without_a_text_the_lengths_come_first():
    model, batch = make_difformer(), noisy_pairs(make_difformer())
    output = model(batch["input_ids"], return_dict=False)
    assert type(output) is tuple and torch.equal(output[0], model(**batch).length_logits)


def test_times_may_be_a_list():
    model, batch = make_difformer(), noisy_pairs(make_difformer())
    again = model(**{**batch, "timesteps": batch["timesteps"].tolist()}, self_condition=True)
    assert torch.equal(again.loss, model(**batch, self_condition=True).loss)


def diffusion_of(model, prediction, clean, is_target):
    """Return the diffusion loss by loops over heads, rows and positions."""
    num_targets, settings = is_target.sum(), model.config.multitoken
    own = (prediction.embeddings - clean)[is_target].square().mean()
    if settings is None:
        return own
    count, total = settings["ngram_size"] - 1, own / 2
    for n in range(1, count + 1):
        for row in range(len(clean)):
            for position in range(int(is_target[row].sum()) - n):
                head = model.heads.layers[n - 1](prediction.hidden[row, position])
                predicted = model.decoder.project_out_dim(head)
                if settings["target"] == "difference":
                    z = clean[row]
                    predicted = predicted + (z[position] if n == 1 else 2 * z[position + 1] - z[position])
                error = (predicted - clean[row, position + n]).square().mean()
                total = total + settings["loss_weight"] / (2 * count) * error / num_targets
    return total


@every_kind
def test_the_loss_is_that_of_the_formula(kind):
    model = always(make_difformer(kind).double(), reads_itself=False)
    batch = noisy_pairs(model)
    output = model(**batch)
    labels, is_target = batch["labels"], batch["labels"] != -100
    weight, config = model.embed_tokens.weight, model.config
    table = weight if not config.normalize_embeddings else F.normalize(weight, dim=1) * LATENT**0.5
    clean = table[labels.clamp(min=0)] * (1 if config.normalize_embeddings else LATENT**0.5)
    of_clean, of_noise = model.process.deviations(batch["timesteps"])
    state = of_clean[:, None, None].double() * clean + of_noise[:, None, None].double() * batch["noise"].double()
    source, told = model.encode(batch["input_ids"], batch["attention_mask"]), model.process.told(batch["timesteps"])
    first = model.denoise(state, torch.zeros_like(state), told, is_target, source)
    passes = [first]
    if config.self_conditioning == "both":
        passes.append(model.denoise(state, first.embeddings, told, is_target, source))
    diffusion = sum(diffusion_of(model, one, clean, is_target) for one in passes)
    rows = [one.embeddings if config.word_loss == "anchor" else clean for one in passes]
    words = sum(F.cross_entropy((one @ table.T)[is_target], labels[is_target]) for one in rows)
    counts = is_target.sum(dim=1)
    classes = (counts - batch["attention_mask"].sum(dim=1) + 10).clamp(0, 19)
    lengths = F.cross_entropy(output.length_logits, classes, reduction="none")
    length = (lengths * counts).sum() / counts.sum()
    for name, expected in (("diffusion", diffusion), ("words", words), ("length", length)):
        torch.testing.assert_close(output.loss_parts[name], expected, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(output.loss, diffusion + words + 0.1 * length, rtol=1e-6, atol=1e-8)
    last = passes[-1].embeddings
    words_there = F.cross_entropy((last @ table.T)[is_target], labels[is_target])
    reported = torch.stack([(last - clean)[is_target].square().mean(), words_there, length])
    torch.testing.assert_close(output.row_losses.sum(dim=0) / counts.sum(), reported)
    torch.testing.assert_close(output.logits[is_target], (passes[-1].embeddings @ table.T)[is_target])


def test_a_curve_of_identity_maps_changes_nothing():
    plain = always(make_difformer().double(), reads_itself=True)
    identity = {"num_control_points_ratio": 1.0, "degree": 1, "margin": 0.0}
    curved = always(make_difformer(curve=identity).double(), reads_itself=True)
    curved.load_state_dict(plain.state_dict())
    batch = noisy_pairs(plain)
    torch.testing.assert_close(curved(**batch).loss, plain(**batch).loss)
    settings = {"attention_mask": batch["attention_mask"], "lengths": torch.tensor([6, 5, 4])}
    seeds = (torch.Generator().manual_seed(0) for _ in range(2))
    one, other = (
        m.generate(batch["input_ids"], generator=s, **settings) for m, s in zip((plain, curved), seeds, strict=True)
    )
    assert torch.equal(one, other)


def test_the_decoder_reads_its_own_prediction_in_half_of_the_steps_without_a_gradient():
    model, passes = make_difformer().train(), []
    denoise = model.denoise
    model.denoise = lambda *arguments: passes.append(torch.is_grad_enabled()) or denoise(*arguments)
    generator, trained = torch.Generator().manual_seed(0), 0
    for _ in range(60):
        passes.clear()
        model(**noisy_pairs(model), generator=generator)
        assert passes in ([True], [False, True])
        trained += len(passes) - 1
    assert 18 < trained < 42


def test_frequencies_of_the_time_are_those_of_a_wide_normal_distribution_in_any_type():
    model = make_difformer("dinoiser")
    layer, seen = model.decoder.embed_time, []
    layer[0].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].float()))
    layer(torch.tensor([0.99]))
    model.bfloat16().decoder.embed_time(torch.tensor([0.99]))
    torch.testing.assert_close(seen[1], seen[0], rtol=0, atol=0.01)
    ranks = (torch.arange(128) + 0.5) / 128
    angles = 2 * torch.pi * 0.99 * torch.distributions.Normal(0.0, 16.0).icdf(ranks)
    torch.testing.assert_close(seen[0][0], torch.cat([angles.sin(), angles.cos()]), rtol=1e-3, atol=1e-3)


def test_noise_is_clipped_where_the_preset_says_so():
    model, times = make_difformer("dinoiser"), []
    process = model.process
    least = model._least_time()
    assert 0.1 < least < 1
    for seed in range(50):
        times.append(process.times(model._uniforms(4, torch.Generator().manual_seed(seed)), least))
    assert torch.cat(times).min() >= least and torch.cat(times).max() <= 1
    assert make_difformer()._least_time() == 0


def test_the_bound_of_noise_is_computed_again_only_when_the_matrix_has_changed(monkeypatch):
    model, calls = make_difformer("dinoiser"), []
    bound, weight = model_file.nearest_neighbour_deviation, model.embed_tokens.weight
    monkeypatch.setattr(model_file, "nearest_neighbour_deviation", lambda rows: calls.append(rows) or bound(rows))

    def step():
        optimizer, weight.grad = torch.optim.AdamW([weight], lr=0.1, fused=True), torch.randn_like(weight)
        optimizer.step()  # without a trace in torch's version counter

    changes = (
        lambda: None,
        step,
        lambda: weight.data.neg_().add_(0.1),
        lambda: model.resize_token_embeddings(60),
        lambda: model.bfloat16(),
    )
    for count, change in enumerate(changes, start=1):
        change()
        with torch.inference_mode(count % 2 == 1):
            found = [model._least_time() for _ in range(2)]
        found.append(copy.deepcopy(model)._least_time())
        assert found == [bound(model._table(model.embed_tokens.weight))] * 3
        assert len(calls) == count
    model.train()(**{name: value for name, value in noisy_pairs(model).items() if name not in ("timesteps", "noise")})
    assert len(calls) == len(changes)


def test_presets_are_values_of_the_same_fields():
    assert PRESETS["difformer"].keys() == PRESETS["dinoiser"].keys()
    for name, values in PRESETS.items():
        config = DifformerConfig(preset=name)
        assert {field: getattr(config, field) for field in values} == values
    assert DifformerConfig(preset="dinoiser", latent_size=64).latent_size == 64


def test_a_new_name_of_a_preset_does_not_pass_for_its_values(tmp_path):
    make_difformer(latent_size=None, dropout=None).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="preset"):
        DifformerForConditionalGeneration.from_pretrained(tmp_path, preset="dinoiser")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"preset": "ddpm"}, "preset"),
        ({"hidden_size": 30}, "multiple"),
        ({"noise_factor": 0.0}, "noise_factor"),
        ({"clip_noise": True}, "continuous"),
        ({"pad_token_id": None}, "pad_token_id"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"use_cache": True}, "use_cache"),
        ({"curve": {"place": "hidden"}}, "place"),
        ({"multitoken": {"ngram_size": 1}}, "ngram_size"),
        ({"multitoken": {"ngram_size": "3"}}, "ngram_size"),
        ({"initializer_range": 0.0}, "initializer_range"),
        ({"activation_function": "rleu"}, "activation_function"),
        ({"time_frequencies": ["a"] * 128}, "time_frequencies"),
        ({"multitoken": {"head": "conditional"}}, "head"),
    ],
)
def test_wrong_configurations_are_told(fields, word):
    with pytest.raises(ValueError, match=word):
        make_difformer(**fields)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"labels": torch.zeros(2, 6, dtype=torch.long)}, "a row for each source"),
        ({"attention_mask": torch.tensor([[1] * 7, [0] * 7, [1] * 7])}, "row 1 has none"),
        ({"timesteps": torch.tensor([3.5, 0, 5])}, "timesteps"),
        ({"noise": torch.zeros(1, 6, 8)}, "noise"),
        ({"labels": torch.tensor([[-100, 5, 6]] * 3)}, "-100"),
        ({"labels": torch.full((3, 41), 5)}, "40 positions"),
        ({"input_ids": None}, "give input_ids"),
        ({"labels": [[5, 6]] * 3}, "labels must be token ids, integers, got list"),
        ({"input_ids": [[5, 6]] * 3}, "input_ids must be token ids, integers, got list"),
        ({"input_ids": torch.full((3, 41), 5), "attention_mask": None}, "40 positions"),
    ],
)
def test_wrong_batches_are_told(changes, word):
    model = make_difformer()
    with pytest.raises(ValueError, match=word):
        model(**{**noisy_pairs(model), **changes})


@pytest.mark.parametrize("preset", ["difformer", "dinoiser"])
def test_the_length_trains_the_encoder_of_difformer_alone(preset):
    model = make_difformer(preset=preset)
    batch = noisy_pairs(model)
    logits = model(batch["input_ids"], batch["attention_mask"]).length_logits
    model.zero_grad()
    logits.square().sum().backward()
    assert (model.encoder.layers[0].fc1.weight.grad is None) == (preset == "dinoiser")
    assert all(parameter.grad is not None for parameter in model.lengths.parameters())


def test_the_loss_of_control_points_weighs_errors_by_the_inverse_of_the_curve():
    model = make_difformer("curve", curve_loss="control_points", self_conditioning="both").double()
    batch, expected, count = noisy_pairs(model), 0.0, 0
    output, clean = model(**batch), model.embedded(batch["labels"].clamp(min=0))
    passes = []
    denoise, model.denoise = model.denoise, lambda *given: passes.append(denoise(*given)) or passes[-1]
    assert model(**batch).loss == output.loss
    for row, length in enumerate((batch["labels"] != -100).sum(dim=1).tolist()):
        curve = model.config.curve
        inverse = inverse_matrix(length, curve.num_control_points_for(length), curve.degree_for(length), curve.margin)
        for one in passes:  # lemma 4.3: V B^+, here with words as rows
            error = (one.embeddings - clean)[row, :length]
            expected += (inverse.T @ error).square().sum() / LATENT
        count += length
    torch.testing.assert_close(output.loss_parts["diffusion"], expected / count)
    with pytest.raises(ValueError, match="curve_loss"):
        make_difformer(curve_loss="control_points")


@pytest.mark.parametrize(("preset", "drops_before"), [("difformer", False), ("dinoiser", True)])
def test_dinoiser_drops_before_positions_and_the_norm(preset, drops_before):
    model, seen = make_difformer(preset=preset, dropout=0.5).train(), []
    model.decoder.embed_norm.register_forward_hook(lambda *called: seen.append(called[2]))
    model.decoder.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    model(**noisy_pairs(model), self_condition=False)
    assert torch.equal(*seen[:2]) == drops_before
