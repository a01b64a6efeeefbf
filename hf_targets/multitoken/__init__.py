"""Causal language models with heads that also predict the tokens after the next one."""
