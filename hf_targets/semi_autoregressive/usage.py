"""The code on the card of a model that predicts blocks of N words."""

from hf_targets.training.model_card import CAUSAL_USAGE, Usage

BLOCK_USAGE = Usage(
    load=CAUSAL_USAGE.load,
    run="""inputs = tokenizer("The", return_tensors="pt")
words = model.generate(**inputs, max_new_tokens=8, tokens_per_step=2)  # 1 (slower, better) to config.ngram_size
print(tokenizer.decode(words[0]))""",
    task=CAUSAL_USAGE.task,
)
