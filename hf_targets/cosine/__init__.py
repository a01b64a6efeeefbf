"""Output embeddings that are kept from collapsing into a narrow cone, and the instruments to see whether they do."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
