import json
import re
import subprocess

import pytest

from tests.programs import ROOT, run_program
from tests.recipes.running import run_recipe


def test_the_curve_benchmark_prints_its_tables():
    printed = run_recipe("benchmarks/curves")
    assert "A training step, L = 16: plain" in printed and "Sampling, L = 16: plain" in printed
    assert re.search(r"\| first_hitting \|  \| \d", printed)
    assert "4 rows of " in printed and re.search(r"\| degree_ratio 0.01 \| \d", printed)


def test_the_mining_benchmark_prints_its_rates():
    printed = run_recipe("benchmarks/phrase_mining")
    assert "forward maximum matching |" in printed
    made = int(re.search(r"A vocabulary of (\d+) phrases", printed)[1])
    assert 300 < made <= 500


def test_the_benchmark_of_building_prints_the_rate_of_every_step(tmp_path):
    printed = run_recipe("benchmarks/build_datastore", "--output_dir", tmp_path)
    for step in ("cutting passages", "mining phrases", "merging counts", "all: equal"):
        assert f"\n| {step} | 0 |" in printed


def test_the_calculation_of_scale_adds_up_vectors_codes_and_tokens():
    printed = run_recipe("benchmarks/phrase_scale")
    (cells,) = re.findall(r"^\| 1,000,000 \| (.+) \|$", printed, re.M)
    sizes = 2 * 576 + (64 + 8) + (4 * 3 + 8), 64 + 8, 4 * 576  # bytes a phrase: disk, codes, vectors in float32
    assert cells.split(" | ")[:3] == [f"{size / 1000:.1f}" for size in sizes]


def test_the_benchmark_of_phrases_prints_its_three_tables():
    printed = run_recipe("benchmarks/phrases")
    for heading in ("phrases a second", "ms a step", "mean steps"):
        assert heading in printed


def test_the_benchmark_of_vector_search_prints_every_factory_in_memory_and_on_disk():
    printed = run_recipe("benchmarks/vector_search")
    ways = ["IVF4,Flat", "IVF4,PQ8x2", "IVF4,Flat, disk", "IVF4,PQ8x2, disk"]
    assert re.findall(r"^\| (IVF[^|]+) \| 0.250 \| 4? \| [01]\.\d", printed, re.M) == ways


def test_the_benchmark_of_collections_prints_every_step():
    printed = run_recipe("benchmarks/collection")
    for step in ("make", "search by vectors", "search by words", "search by both", "delete", "open"):
        assert f"| {step} |" in printed


def test_the_benchmark_of_drafts_prints_every_way_of_each_type_and_batch():
    printed = run_recipe("benchmarks/draft_steps")
    rows = re.findall(r"\| (float32|bfloat16) \| (\d) \| ([^|]+) \|", printed)
    autos = [f"auto, 50%, {which}" for which in ("first text", "later")]
    ways = ["plain", "ensemble", "drafts, 50%", *autos, "model alone, 4 positions"]
    assert rows == [(dtype, size, way) for dtype in ("float32", "bfloat16") for size in "12" for way in ways]


def test_the_benchmark_of_families_finds_the_plain_texts():
    printed = run_recipe("benchmarks/families")
    assert re.findall(r"^\| (\w+) \| 100% \| 100% \| 100% \|", printed, re.M) == ["llama", "mamba2", "t5"]
    assert re.search(r"\| llama \| 200 \| [1-9]\d* \| [\d.]+ \| \d+ \| [01]\.\d\d \|", printed)
    assert re.search(r"\| mamba2 \| 22M \|", printed)


def test_the_benchmark_of_latency_prints_every_way():
    printed = run_recipe("benchmarks/latency")
    assert "8 tokens in 4 steps with phrases" in printed
    rows = re.findall(r"\| (float32|bfloat16) \| \w* ?\| (\w*) ?\| [\d,]+ \| (\w+) \|", printed)
    ways = [("", "base"), *((unit, way) for unit in ("tokens", "words") for way in ("cold", "warm", "kept"))]
    assert rows == [(dtype, *way) for dtype in ("float32", "bfloat16") for way in ways]


def test_the_benchmark_of_translation_prints_every_way(translated):
    printed = run_recipe("benchmarks/translate", "--model", translated[0] / "wdr-seed0")
    for size in (1, 2):
        table = printed.split(f"{size} source(s) at once")[1]
        rows = re.findall(r"^\| ([^|]+) \| [\d,]+ \|.*\| 100% \|$", table.split("source(s)")[0], re.MULTILINE)
        assert rows[:5] == ["plain", "chain", "tree", "chain and source", "auto"]


def test_the_benchmark_of_a_step_takes_encoder_decoder_models(monkeypatch):
    def forked(command, **options):  # in a process of its own that need not import what it needs
        done = run_program(ROOT / command[1], *command[2:])
        assert done.returncode == 0, done.stderr
        return done

    monkeypatch.setattr(subprocess, "run", forked)
    printed = run_recipe("benchmarks/train_step", "--architecture", "marian", "--dtype", "float32")
    assert re.search(r"\| float32 \| wdr \| [\d.]+ \| [\d.]+ \| 1\.\d\d \|", printed)


def test_the_benchmark_of_gaussian_diffusion_prints_ratios():
    printed = run_recipe("benchmarks/gaussian_diffusion")
    assert "2 texts of 8 tokens, float32" in printed
    assert re.search(r"\| plain \| \d+ \| \d* ?\| \d+ \| 1\.00 \| 1\.00 \| 1\.00 \| 1\.00 \|", printed)
    cells = re.search(r"\| 2 curves \| \d+ \| \d* ?\| \d+ \| (.*) \|", printed)[1].split(" | ")
    training, decoding, *over_work = map(float, cells)
    assert over_work == pytest.approx([training / 4, decoding / 4], abs=0.01)  # N_ratio K = 4


def test_the_benchmark_of_cosine_regularization_prints_a_row_for_each_vocabulary():
    printed = run_recipe("benchmarks/cosine_regularization")
    assert re.findall(r"\| (\d+) \| \d+ \| \d+ \| \d+ \| [\d.]+% \| [\d.]+% \|", printed) == ["100", "200"]


def test_the_benchmark_of_the_cache_gives_the_numbers_of_the_loop():
    printed = run_recipe("benchmarks/neural_cache")
    worst = re.findall(r"\| (\d\S*) \|$", printed, re.M)
    assert [float(one) < 1e-5 for one in worst] == [True, True]


def test_the_benchmark_of_a_gpu_measures_every_part_in_small(tmp_path):
    printed = run_recipe("benchmarks/gpu", "--output_dir", tmp_path)
    results = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    assert set(results["parts"]) == {"drafts", "training", "losses", "phrases", "diffusion"}
    assert all(part["rows"] and part["error"] is None for part in results["parts"].values())
    assert (tmp_path / "gpu.md").read_text(encoding="utf-8") in printed


def test_the_benchmark_of_losses_compares_ours_with_whole_logits():
    printed = run_recipe("benchmarks/losses")
    assert re.findall(r"^\| ([\w ]+) \| \d", printed, re.M) == ["all logits", "hf_targets"]
