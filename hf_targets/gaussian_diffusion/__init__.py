"""Gaussian diffusion on embeddings for conditional text: Difformer and DINOISER, with sentence curves or without."""
