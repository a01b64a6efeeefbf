"""Sampling from masked diffusion models: which masked tokens are unmasked when, and how they are drawn."""
