"""Decoding with tokens and phrases: the phrases of each row, and what reads a text must see them expanded."""
