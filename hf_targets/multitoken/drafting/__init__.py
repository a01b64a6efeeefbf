"""Drafting with the future-token heads: guesses made, verified in one forward pass, and kept where they are right."""
