"""Batches for training with phrases: the choice of phrases in a text, and the negative phrases."""
