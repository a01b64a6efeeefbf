"""The loops and processors behind `generate`; they see a model only through a Protocol."""
