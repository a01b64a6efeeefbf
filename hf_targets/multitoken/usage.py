"""The code on the cards of draft heads and of masked models."""

from hf_targets.training.model_card import Usage

MASKED_USAGE = Usage(
    load="""from transformers import AutoModelForMaskedLM, AutoTokenizer

model = AutoModelForMaskedLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")""",
    run="""inputs = tokenizer("The [MASK] is", return_tensors="pt")
best = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id].argmax(dim=-1)
print(tokenizer.decode(best))""",
    task="fill-mask",
)

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
