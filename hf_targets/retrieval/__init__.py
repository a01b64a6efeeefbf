"""Nearest-neighbour search: vectors by their inner products, documents by their text."""
