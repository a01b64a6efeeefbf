"""The code on the card of a model with a dynamic vocabulary."""

from hf_targets.training.model_card import CAUSAL_USAGE, Usage

PHRASE_USAGE = Usage(
    load=CAUSAL_USAGE.load,
    run="""from hf_targets import PhraseVocabulary

texts = ["of the language", "in the same way"]  # phrases of your own, or those of PhraseVocabulary.from_documents
phrases = PhraseVocabulary.from_phrases(texts, tokenizer, vocab_size=model.get_output_embeddings().weight.shape[0])
inputs = tokenizer("The", return_tensors="pt")
print(phrases.decode(model.generate(**inputs, phrases=phrases, max_new_static_tokens=8)[0]))""",
    task="text-generation",
)
