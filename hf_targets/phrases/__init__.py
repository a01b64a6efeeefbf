"""Causal language models that read and generate phrases, from a vocabulary that is given with each call."""
