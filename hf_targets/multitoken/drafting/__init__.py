"""Drafting: the heads guess tokens, one forward pass of the model verifies them, and the right guesses are kept."""
