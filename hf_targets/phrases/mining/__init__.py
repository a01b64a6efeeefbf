"""Finding the phrases of texts."""
