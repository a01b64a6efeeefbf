"""Sentence curves: the embeddings of a text are points of one B-spline, and a model predicts its control points."""
