"""Masked diffusion language models (MDLM), plain or with a sentence curve."""
