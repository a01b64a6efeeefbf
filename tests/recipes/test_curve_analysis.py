"""The recipe that looks at the mappings of sentence curves."""

import json

from tests.recipes.running import run_recipe


def test_it_leaves_tables_and_figures_of_all_settings(tmp_path):
    printed = run_recipe("tables/analyze_curves", "--output_dir", tmp_path / "out")
    lost, weights = (
        json.loads((tmp_path / "out" / f"{name}.json").read_text()) for name in ("reconstruction", "error_importance")
    )
    assert [(row["length"], row["num_control_points_ratio"]) for row in lost] == [(4, 1.0), (8, 1.0)]
    assert [(row["length"], row["degree_ratio"]) for row in weights] == [(4, 0.1), (8, 0.1), (4, 0.2), (8, 0.2)]
    for row in weights:
        assert f"| {row['mean_ratio']:.3g} | {row['largest_ratio']:.3g} | {row['eigenvalue_ratio']:.3g} |" in printed
    for name in ("reconstruction", "error_importance"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
