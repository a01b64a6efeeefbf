"""Sampling from masked diffusion models: the order in which tokens are unmasked, and how they are drawn."""
