"""Measures of trained models, each usable without the rest of the library."""
