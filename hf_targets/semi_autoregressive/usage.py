"""The code on the card of a model that predicts blocks of N words, and what its figures are."""

from hf_targets.training.model_card import CAUSAL_USAGE, Usage

BLOCK_USAGE = Usage(
    load=CAUSAL_USAGE.load,
    run="""inputs = tokenizer("The", return_tensors="pt")
words = model.generate(**inputs, max_new_tokens=8, tokens_per_step=2)  # 1 (slower, better) to config.ngram_size
print(tokenizer.decode(words[0]))""",
    task=CAUSAL_USAGE.task,
)

BLOCK_METRICS = {"perplexity_1": "perplexity"}
"""Test metrics by their names on the card: that of the next word is what is called so of any other model."""

BLOCK_PERPLEXITIES = (
    "*perplexity_n* is that of the n-th word from here, *perplexity* the mean over words 1 to N. What other language "
    "models report is *perplexity_1*; *word_perplexity* is the same per word of the text."
)
"""What the columns of the tables on a card are."""
