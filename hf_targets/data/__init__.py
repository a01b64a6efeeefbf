"""From text to batches: corpora, tokenizers, and blocks of token ids."""
