"""The code on the card of an AWD-LSTM."""

from hf_targets.training.model_card import CAUSAL_USAGE, Usage

AWD_LSTM_USAGE = Usage(
    load=CAUSAL_USAGE.load,
    run="""inputs = tokenizer("The", return_tensors="pt")
state = model(**inputs, use_cache=True).past_key_values  # of constant size, however long the text is
print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))""",
    task=CAUSAL_USAGE.task,
)
