"""Phrases as entries behind the tokens of a vocabulary: what they are, how they are kept, and their files."""
