# The public names: those of each target, which stand in its folder, and those of the shared layers, each from where it
# is made. `hf_targets/__init__.py` reads this file, and so do editors and type checkers. A name is imported when it is
# first asked for.

from .awd_lstm import *
from .baselines import *
from .cosine import *
from .crammed_bert import *
from .curves import *
from .gaussian_diffusion import *
from .masked_diffusion import *
from .multitoken import *
from .neural_cache import *
from .phrases import *
from .semi_autoregressive import *
from .tensorized_transformer import *

# isort: split
from .data.blocks import enclosed_blocks as enclosed_blocks
from .data.blocks import pack_blocks as pack_blocks
from .data.corpora import documents_of as documents_of
from .data.corpora import load_corpus as load_corpus
from .data.pair_encoding import encode_pairs as encode_pairs
from .data.pair_encoding import filter_pairs as filter_pairs
from .data.pairs import load_pairs as load_pairs
from .data.tokenization import train_bpe_tokenizer as train_bpe_tokenizer
from .data.tokenization import train_joint_bpe as train_joint_bpe
from .data.tokenization import train_masking_tokenizer as train_masking_tokenizer
from .data.tokenization import word_level_tokenizer as word_level_tokenizer
from .evaluation.citations import citation_scores as citation_scores
from .evaluation.citations import mean_citation_scores as mean_citation_scores
from .evaluation.continuations import continue_prefixes as continue_prefixes
from .evaluation.continuations import measure_continuations as measure_continuations
from .evaluation.continuations import take_prefixes as take_prefixes
from .evaluation.diversity_callback import GradientDiversityCallback as GradientDiversityCallback
from .evaluation.gradient_diversity import gradient_diversity as gradient_diversity
from .evaluation.perplexity import perplexity_of_blocks as perplexity_of_blocks
from .evaluation.quotes import check_quotes as check_quotes
from .evaluation.translation import translate as translate
from .evaluation.translation import translation_scores as translation_scores
from .figures.learning_curves import plot_learning_curves as plot_learning_curves
from .maths.cosine_regularization import cosine_regularization as cosine_regularization
from .retrieval.collection import DocumentCollection as DocumentCollection
from .retrieval.disk_index import DiskIndex as DiskIndex
from .retrieval.disk_index_builder import DiskIndexBuilder as DiskIndexBuilder
from .retrieval.documents import DocumentRetriever as DocumentRetriever
from .retrieval.encoders import dpr_encoder as dpr_encoder
from .retrieval.lance_index import LanceIndex as LanceIndex
from .retrieval.qdrant_index import QdrantIndex as QdrantIndex
from .retrieval.sharded_index import ShardedIndex as ShardedIndex
from .retrieval.vector_index import VectorIndex as VectorIndex
from .retrieval.vector_search import VectorSearch as VectorSearch
from .training.arguments import TargetTrainingArguments as TargetTrainingArguments
from .training.lora import add_lora as add_lora

__version__: str
