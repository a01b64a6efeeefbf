"""Vocabularies of phrases, whose ids follow those of a model's tokens: the phrases in memory and on disk."""
