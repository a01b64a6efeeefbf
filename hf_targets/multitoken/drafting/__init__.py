"""Drafting with the future-word heads: guesses made, verified in one forward pass, and kept where they are right."""
