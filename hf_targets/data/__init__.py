"""From text to batches: corpora, tokenizers, documents, and blocks of token ids."""
