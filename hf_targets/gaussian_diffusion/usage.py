"""The code on the card of a Gaussian diffusion model, and its figures there."""

from dataclasses import replace

from hf_targets.training.model_card import PAIR_USAGE, Usage

SCORE_METRICS = {"bleu": "BLEU", "bleu_tokenized": "BLEU of words", "chrf": "chrF"}
"""Scores of texts by their names on the card; the perplexity of an evaluation only compares checkpoints."""


def pair_usage(source_lang: str, target_lang: str) -> Usage:
    """Return the usage of a model that translates, or writes another text in the same language."""
    return PAIR_USAGE if source_lang != target_lang else replace(PAIR_USAGE, task="text2text-generation")
