"""Trainer subclasses."""
