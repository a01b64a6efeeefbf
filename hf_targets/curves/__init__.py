"""Sentence curves: a text's embeddings as points of one B-spline, whose control points a model predicts instead."""
