"""Output embeddings that are kept from collapsing into a narrow cone, and the instruments to see whether they do."""
