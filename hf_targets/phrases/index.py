"""The phrases of a large vocabulary that a hidden state scores highest, without the product with all of them."""

from hf_targets.retrieval.vector_index import VectorIndex


class PhraseIndex(VectorIndex):
    """Inner-product search over the output embeddings of a vocabulary's phrases, for `phrase_index` of `generate`.

    `DynamicVocabForCausalLM.index_phrases` makes one. Number s of the index is slot s of the vocabulary, the phrase
    with the id V + s. `phrase_fingerprint` of the model is the `fingerprint` that `load` compares.
    """

    file_name = "phrase_index"
