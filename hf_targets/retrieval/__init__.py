"""Nearest-neighbour search: phrases by their embeddings, documents by their text."""
