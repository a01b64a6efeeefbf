"""Figures, drawn from what training and evaluation wrote."""
