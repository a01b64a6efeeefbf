"""The code and the metrics on the card of a masked diffusion model."""

from hf_targets.training.model_card import Usage

DIFFUSION_USAGE = Usage(
    load="""from transformers import AutoModelForMaskedLM, AutoTokenizer

model = AutoModelForMaskedLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")""",
    run="""ids = model.generate(num_steps=8)  # a row of max_position_embeddings tokens
print(tokenizer.decode(ids[0], skip_special_tokens=True))""",
    task="fill-mask",
)

DIFFUSION_METRICS = {"perplexity": "upper bound of the perplexity"}
"""Test metrics by their names on the card."""
