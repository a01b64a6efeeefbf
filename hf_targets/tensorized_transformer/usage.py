"""The code on the card of a Tensorized Transformer with the published attention, which cannot generate."""

from hf_targets.training.model_card import CAUSAL_USAGE, Usage

LEAKY_USAGE = Usage(
    load=CAUSAL_USAGE.load,
    run="""length = model.config.get_text_config().text_multiple
inputs = tokenizer("The", return_tensors="pt", padding="max_length", max_length=length)
print(model(**inputs).logits.shape)  # it reads the tokens that it predicts, and cannot generate""",
    task="feature-extraction",
)
