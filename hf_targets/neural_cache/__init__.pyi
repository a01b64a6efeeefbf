from .cache import NeuralCache as NeuralCache
from .generation import cache_processor as cache_processor
from .perplexity import cached_perplexities as cached_perplexities
from .perplexity import search_cache as search_cache
