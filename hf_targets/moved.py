"""Modules and names that lay elsewhere before each target had a folder: the old places warn, and still work."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

_FOLDERS = {
    "decoding": "backbones",  # which had nothing of its own but the folders below
    "decoding.masked_diffusion": "masked_diffusion.sampling",
    "decoding.multitoken": "multitoken.drafting",
    "decoding.phrases": "phrases.decoding",
    "models": "backbones",
    "models.curves": "curves",
    "models.mdlm": "masked_diffusion",
    "models.multitoken": "multitoken",
    "models.phrases": "phrases",
}
"""What is inside an old folder is inside the new one, under its own name, unless the next table has it."""

_MODULES = {
    "decoding.masked_diffusion.settings": "masked_diffusion.sampling.samplers",
    "backbones.positions": "positions",
    "models.positions": "positions",
    "data.constituency": "phrases.mining.constituency",
    "data.diffusion": "masked_diffusion.rows",
    "data.forward_maximum_matching": "phrases.mining.forward_maximum_matching",
    "data.generated_negatives": "phrases.batches.generated_negatives",
    "data.length_protocols": "masked_diffusion.length_protocols",
    "data.phrase_documents": "data.documents",
    "data.phrase_entries": "phrases.batches.entries",
    "data.phrase_file_rules": "phrases.vocabulary.file_rules",
    "data.phrase_files": "phrases.vocabulary.files",
    "data.phrase_interleaving": "phrases.batches.interleaving",
    "data.phrase_mining": "phrases.mining.ngrams",
    "data.phrase_negatives": "phrases.batches.negatives",
    "data.phrase_store": "phrases.vocabulary.store",
    "data.phrase_tokenization": "phrases.vocabulary.tokenization",
    "data.phrase_vocabulary": "phrases.vocabulary.vocabulary",
    "data.phrase_windows": "phrases.windows",
    "data.phrases": "phrases.batches.collator",
    "data.retokenization": "phrases.batches.retokenization",
    "data.row_draws": "phrases.batches.row_draws",
    "data.self_generated": "multitoken.self_generated",
    "data.tokenized_text": "phrases.mining.tokenized_text",
    "decoding.masked_diffusion.denoiser": "masked_diffusion.sampling.window",
    "decoding.masked_diffusion.drawing": "masked_diffusion.sampling.token_sampling",
    "decoding.masked_diffusion.filling": "masked_diffusion.sampling.window",
    "decoding.masked_diffusion.unmasking_times": "maths.unmasking_times",
    "decoding.multitoken.past": "multitoken.hidden_state_cache",
    "decoding.multitoken.processing": "backbones.processors",
    "evaluation.curve_reconstruction": "curves.reconstruction",
    "evaluation.curve_steps": "masked_diffusion.curve_steps",
    "evaluation.nelbo": "masked_diffusion.perplexity_bound",
    "evaluation.phrase_costs": "phrases.costs",
    "evaluation.phrase_search": "retrieval.index_benchmark",
    "figures.curve_reconstruction": "curves.reconstruction_figure",
    "figures.curve_steps": "masked_diffusion.curve_figure",
    "figures.phrase_highlighting": "phrases.highlighting",
    "retrieval.phrase_lists": "retrieval.inverted_lists",
    "retrieval.phrases": "phrases.index",
    "training.diffusion": "masked_diffusion.trainer",
    "training.draft_heads": "multitoken.draft_heads",
    "training.multitoken": "multitoken.trainer",
    "training.phrase_settings": "phrases.settings",
    "training.phrases": "phrases.trainer",
    "backbones.zero_linear": "backbones.zero_init_linear",
    "masked_diffusion.original": "masked_diffusion.published",
    "maths.acceptance": "maths.speculative_sampling",
    "maths.mixing": "maths.ensemble",
    "phrases.decoding.run": "phrases.decoding.generation_state",
    "training.runs": "training.experiments",
}

_NAMES = {
    "evaluation.continuations": {
        "format_column_differences": "evaluation.score_columns",
        "format_columns": "evaluation.score_columns",
    },
    "evaluation.gradient_diversity": {"GradientDiversityCallback": "evaluation.diversity_callback"},
    "phrases.highlighting": {"phrase_page": "phrases.phrase_page"},
    "phrases.vocabulary.tokenization": {"tokenizer_fingerprint": "data.tokenizer_fingerprint"},
    "retrieval.vector_index": {"PhraseIndex": "phrases.index"},
    "training.arguments": {
        "DiffusionTrainingArguments": "masked_diffusion.arguments",
        "DynamicVocabTrainingArguments": "phrases.arguments",
        "MultiTokenTrainingArguments": "multitoken.arguments",
    },
    "training.model_card": {
        "create_repository": "training.hub_upload",
        "upload_folder": "training.hub_upload",
    },
}
"""Names that left a module which stays."""

_RENAMED = {
    "evaluation.speed": {"Way": "DecodingMethod"},
    "maths.noise": {"LEFT_AT_THE_END": "ALPHA_MIN", "SMALLEST_TIME": "MIN_TIME"},
    "multitoken.hidden_state_cache": {"PastPredictions": "HiddenStateCache"},
    "phrases.embedding_cache": {"PhraseEmbeddings": "PhraseEmbeddingCache"},
    "phrases.settings": {"make_collator": "make_phrase_collator"},
    "training.comparison": {"Row": "Run", "train_row": "train_run", "train_rows": "train_runs"},
    "training.experiments": {"Run": "Experiment", "RUN_NAME": "RECORD_NAME"},
    "training.outputs": {
        "ROW_OUTPUT": "RUN_OUTPUT",
        "check_row_folder": "check_run_folder",
        "check_row_names": "check_run_names",
        "row_patterns": "run_patterns",
    },
    "training.seeds": {"row_folder": "run_folder"},
    "training.settings": {"parse": "parse_settings"},
    "training.tables": {"format_table": "format_perplexities", "histories": "training_histories"},
}
"""Names that became others in the same module."""

_RENAMED_CLASSES = {
    "OriginalLayout": "PublishedLayout",
    "PhraseRun": "PhraseGenerationState",
    "ZeroLinear": "ZeroInitLinear",
}
"""Classes that old modules have under another name."""


def new_place(module: str) -> str | None:
    """Return where a module of the old layout is now, by its full name; None if it was none."""
    package, _, old = module.partition(".")
    if package != "hf_targets":
        return None
    if old in _MODULES:
        return f"{package}.{_MODULES[old]}"
    for folder in sorted(_FOLDERS, key=len, reverse=True):
        if old == folder or old.startswith(f"{folder}."):
            new = f"{_FOLDERS[folder]}{old.removeprefix(folder)}"
            return f"{package}.{_MODULES.get(new, new)}"  # some were renamed after they had moved
    return None


def moved_name(module: str, name: str) -> Any:
    """Return a name that left a module or became another in it, for that module's `__getattr__`.

    Raises:
        AttributeError: If it never was there.
    """
    renamed = _RENAMED.get(module.removeprefix("hf_targets."), {}).get(name)
    if renamed is not None:
        warnings.warn(f"{module}.{name} is {module}.{renamed} now", DeprecationWarning, stacklevel=3)
        return getattr(import_module(module), renamed)
    home = _NAMES.get(module.removeprefix("hf_targets."), {}).get(name)
    if home is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(f"{module}.{name} is hf_targets.{name} now", DeprecationWarning, stacklevel=3)
    return getattr(import_module(f"hf_targets.{home}"), name)


class _OldPlace(InspectLoader):
    """Makes of an old module's name one that has what the new module has."""

    def __init__(self, new: str) -> None:
        self.new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave it to Python to make an empty module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Look up every name in the new module."""
        real = import_module(self.new)
        warnings.warn(f"{module.__name__} is {self.new} now", DeprecationWarning, stacklevel=2)

        def look_up(name: str) -> Any:
            return getattr(real, _RENAMED_CLASSES.get(name, name))

        module.__getattr__ = look_up  # pyright: ignore[reportAttributeAccessIssue]

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the new module's code, for `python -m`."""
        spec = find_spec(self.new)
        loader = None if spec is None else spec.loader
        return loader.get_code(self.new) if isinstance(loader, InspectLoader) else None

    def get_source(self, fullname: str) -> str | None:
        """Return nothing: the source is at the new place."""
        return None


class OldPlaces(MetaPathFinder):
    """Finds modules of the old layout."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how to import a module of the old layout, None for any other."""
        new = new_place(fullname)
        if new is None:
            return None
        real = find_spec(new)
        spec = ModuleSpec(fullname, _OldPlace(new))
        if real is None or real.submodule_search_locations is not None:
            spec.submodule_search_locations = []  # a folder: modules below it are looked up here, too
        return spec


def keep_old_places() -> None:
    """Let the old places be imported; modules that are found where they lie come first."""
    if not any(isinstance(finder, OldPlaces) for finder in sys.meta_path):
        sys.meta_path.append(OldPlaces())
