"""Decoding with tokens and phrases: the phrases of each row, and the expansion of phrases for readers of tokens."""
