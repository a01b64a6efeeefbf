"""Measures of trained models, usable alone."""
