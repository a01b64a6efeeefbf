"""Causal, encoder-decoder and masked language models with heads that also predict the tokens after the next one."""
