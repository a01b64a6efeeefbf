"""CrammedBERT, a BERT that is quick to pre-train, and its published checkpoints."""
