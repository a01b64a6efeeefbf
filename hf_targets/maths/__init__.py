"""Tensors in, tensors out: the equations of the papers, without models."""
