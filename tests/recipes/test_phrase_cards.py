from huggingface_hub import ModelCard

from tests.recipes.running import run_recipe, small_text
from tests.training.test_model_card import run_code


def test_the_card_of_a_model_with_phrases_has_both_perplexities_a_given_licence_and_code_that_runs(tmp_path):
    given = ["--max_train_words", "600", "--max_steps", "2", "--rows", '{"plain": {"phrases": "none"}, "ours": {}}']
    given += ["--license", "mit", "--output_dir", str(tmp_path / "out"), "--disable_tqdm", "true"]
    given += ["--dataset", small_text(), "--eval_strategy", "no", "--save_strategy", "no"]
    printed = run_recipe("train_dynamic_vocab", *given)
    card = ModelCard.load(tmp_path / "out" / "ours-seed0" / "README.md")
    named = [one.metric_name for one in card.data.eval_results]
    assert named == ["perplexity", "perplexity of the best path with phrases"]
    assert (card.data.license, card.data.library_name) == ("mit", "hf-targets")
    assert printed.count("best_path_perplexity |") == 1  # the table is printed once
    assert "phrases=phrases" in run_code(tmp_path / "out" / "ours-seed0", tmp_path / "out")
    plain = ModelCard.load(tmp_path / "out" / "plain-seed0" / "README.md")
    assert plain.data.library_name == "transformers"
