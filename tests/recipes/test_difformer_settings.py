"""Settings of Gaussian diffusion for the papers' own sizes: the numbers of the papers and of the published scripts."""

import runpy
from functools import cache

import pytest

from hf_targets import DifformerConfig
from hf_targets.gaussian_diffusion.generation import DEFAULTS
from lab.runs import parse_table
from lab.settings import parse_mapping
from tests.programs import ROOT

COLUMNS = ("dropout", "label_smoothing", "latent_size", "noise_factor", "hidden_size", "intermediate_size")
COLUMNS += ("num_attention_heads", "K tokens", "learning_rate", "warmup_steps", "max_grad_norm", "weight_decay")
COLUMNS += ("max_steps", "average_checkpoints", "num_lengths", "num_noises")
PUBLISHED = {  # tokens of one process
    "iwslt14": (0.3, 0.1, 128, 4.0, 512, 1024, 4, 8, 5e-4, 10_000, 0.0, 0.01, 300_000, 5, 5, 2),  # SCLM, table 2
    "wmt14": (0.1, 0.1, 128, 3.5, 512, 2048, 8, 16, 5e-4, 4_000, 1.0, 0.01, 300_000, 5, 7, 3),  # SCLM, table 2
    "qqp": (0.1, 0.1, 128, 4.0, 768, 3072, 12, 8, 5e-4, 10_000, 1.0, 0.01, 50_000, 5, 5, 2),  # Difformer
    "wiki_auto": (0.1, 0.1, 128, 4.0, 768, 3072, 12, 16, 5e-4, 10_000, 1.0, 0.01, 30_000, 5, 5, 2),  # Difformer
    "iwslt14_dinoiser": (0.2, 0.0, 16, 1.0, 512, 1024, 4, 32, 5e-4, 4_000, 0.0, 0.01, 280_000, 1, 10, 5),  # DINOISER
}
CURVES = {  # N_ratio, eta (a share of N, or fixed) and K: SCLM, table 3
    "iwslt14_distilled_en_de": (2.5, 0.1, 3),
    "iwslt14_distilled": (3.0, 5, 1),
    "iwslt14_en_de": (2.0, 0.01, 2),
    "iwslt14": (2.0, 0.01, 3),
    "wmt14_en_de": (2.5, 0.05, 1),
    "wmt14": (2.5, 0.01, 1),
}
HEADS = {  # N, alpha and lambda: WDR, table 10
    "iwslt14_dinoiser_en_de": (2, 0.1, 0.1),
    "iwslt14_dinoiser": (3, 0.1, 0.1),
    "qqp": (3, 0.5, 0.2),
    "wiki_auto": (4, 1.0, 0.1),
}


@cache
def recipe():
    names = runpy.run_path(str(ROOT / "recipes" / "tables" / "train_difformer.py"), run_name="read")
    return names["recipe"]


def row_of(name, row):
    """Return the settings, the arguments and the model's configuration of a row of a table."""
    file = ROOT / "recipes" / "settings" / "tables" / "train_difformer" / f"{name}.yaml"
    table = parse_table(recipe(), arguments=[str(file), "--use_cpu", "true"])
    of_run = {**table.settings, **table.rows[row], "output_dir": str(table.output_dir)}
    setup, args = parse_mapping(of_run, *recipe().SETTINGS)
    targets = {"curve": setup.curve, "multitoken": setup.multitoken}
    return setup, args, DifformerConfig(preset=setup.preset, vocab_size=setup.vocab_size, **setup.config, **targets)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_rates_batches_and_candidates_are_those_of_the_paper(name):
    setup, args, config = row_of(name, "wdr" if name.startswith(("qqp", "wiki", "iwslt14_dinoiser")) else "curves")
    found = {**vars(config), **vars(args), **setup.generation, "K tokens": args.tokens_per_batch // 1000}
    found["average_checkpoints"] = setup.average_checkpoints
    assert tuple(found[column] for column in COLUMNS) == PUBLISHED[name]
    assert (args.adam_beta2, args.lr_scheduler_type, args.metric_for_best_model) == (0.98, "inverse_sqrt", "bleu")
    assert (config.num_diffusion_steps, DEFAULTS["num_reverse_steps"]) == (2000, 20)


@pytest.mark.parametrize("name", CURVES)
def test_curves_are_those_of_table_3(name):
    setup, _, config = row_of(name, "curves")
    curve = config.curve
    eta = curve.degree_ratio if curve.degree is None else curve.degree
    assert (curve.num_control_points_ratio, eta, curve.num_curves) == CURVES[name]
    assert ("distill" in setup.dataset) == ("distilled" in name)
    assert (setup.source_lang, setup.target_lang) == (("en", "de") if name.endswith("en_de") else ("de", "en"))


@pytest.mark.parametrize("name", HEADS)
def test_heads_are_those_of_table_10(name):
    setup, _, config = row_of(name, "wdr")
    heads = config.multitoken
    assert (heads["ngram_size"], heads["loss_weight"], setup.ensemble_weight) == HEADS[name]
    assert config.preset == ("dinoiser" if "dinoiser" in name else "difformer")
    assert config.attention_dropout == (0.2 if "dinoiser" in name else 0.0)


def test_a_setting_of_generation_that_is_none_is_told_before_a_training(capsys):
    with pytest.raises(SystemExit):
        parse_mapping({"generation": {"num_length": 2}}, *recipe().SETTINGS)
    assert "got num_length" in capsys.readouterr().err
    assert parse_mapping({"generation": {"clamp": True}}, *recipe().SETTINGS)[0].generation["num_noises"] == 1
