"""Batches for training with phrases: which stand in a text, and which are negatives."""
