"""The code on the card of draft heads."""

from hf_targets.training.model_card import Usage

DRAFT_USAGE = Usage(
    load="""from hf_targets import MultiTokenForCausalLM
from transformers import AutoTokenizer

model = MultiTokenForCausalLM.from_pretrained("{name}")  # the heads, on the base model that their config.json names
tokenizer = AutoTokenizer.from_pretrained("{name}")""",
    run="""inputs = tokenizer("The", return_tensors="pt")
drafts = {"draft_tokens": model.config.ngram_size - 1}
print(tokenizer.decode(model.generate(**inputs, **drafts, max_new_tokens=8, do_sample=False)[0]))""",
    task="text-generation",
)
