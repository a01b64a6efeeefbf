"""Transformers' Reformer, mended: it reads the same text in the same way, at any length, each row by itself."""
