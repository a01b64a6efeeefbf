"""A continuous cache: words that followed similar hidden states a while ago become more probable, in any model."""
