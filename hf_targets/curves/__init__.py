"""Sentence curves: the embeddings of a text are points of one B-spline, and a model predicts its control points."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
