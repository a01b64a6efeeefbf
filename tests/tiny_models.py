"""The backbones of `tests/tiny_backbones.py` with heads, and with phrases."""

from functools import cache

import torch
from transformers import AutoModelForCausalLM, MistralConfig, PreTrainedModel
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from hf_targets import DynamicVocabForCausalLM, MultiTokenForCausalLM, PhraseCollator, PhraseVocabulary, TokenNgrams
from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.phrases.batches.negatives import Prefixes, SelfRetrieval
from tests.tiny_backbones import (
    CACHED_FAMILIES,
    CONFIGS,
    FAMILIES,
    SMALL,
    VOCAB,
    left_padded,
    make_backbone,
    pad_rows,
    token_ids,
)

__all__ = [  # with those of backbones, which most tests take together with models
    "CACHED_FAMILIES",
    "CONFIGS",
    "FAMILIES",
    "VOCAB",
    "left_padded",
    "make_backbone",
    "pad_rows",
    "token_ids",
]
TIES = (("gpt2", True), ("opt", True), ("phi", False), ("reformer", False))
"""Families with and without tied phrase embeddings: Reformer's output matrix is wider than its input matrix."""
TARGETS = ("difference", "embedding", "conditional")  # the last: differences, with heads that read the conjugate
HEADS_OF_FAMILIES = (
    ("gpt_neo", "embedding"),
    ("gpt2", "difference"),
    ("llama", "difference"),
    ("qwen3", "embedding"),
    ("opt", "conditional"),  # what the heads read has not the width of the output matrix
    ("phi", "embedding"),
    ("mistral", "conditional"),
)
"""Each family with a cache, and each target with several of them."""


def make_model(family: str = "gpt_neo", seed: int = 0, **config) -> MultiTokenForCausalLM:
    """Return heads on a tiny backbone."""
    kinds = {
        "conditional": {"target": "difference", "head": "conditional"},
        "separate_output_heads": {"target": "embedding", "separate_output_heads": True},
    }
    config |= kinds.get(config.get("target", ""), {})
    return MultiTokenForCausalLM.from_base(make_backbone(family, seed), **{"ngram_size": 4, **config}).eval()


def make_dynamic_model(family: str = "gpt2", seed: int = 0, **config) -> DynamicVocabForCausalLM:
    """Return a model with a phrase encoder, other than its backbone, around a tiny backbone."""
    if family == "reformer":
        config = {"tie_phrase_embeddings": False, **config}  # its output embedding is wider than the other
    encoder = None if config.get("phrase_encoder_kind") == "mean" else make_backbone(family, seed + 1)
    config = {"phrase_start": "encoder", **config}  # whose phrases are chosen as often as tokens
    return DynamicVocabForCausalLM.from_base(make_backbone(family, seed), encoder, **config).eval()


PHRASES = ((1, 2), (3, 4, 5), (1, 2, 6), (7, 8, 9, 10))
WORDS = word_level_tokenizer([" ".join(f"w{number}" for number in range(VOCAB - 3)) + "\n"])  # as many as the models'


def make_vocabulary(*phrases: tuple[int, ...]) -> PhraseVocabulary:
    """Return a vocabulary of phrases, of `PHRASES` if none is given."""
    return PhraseVocabulary.from_token_ids(phrases or PHRASES, WORDS, vocab_size=VOCAB)


def phrase_ids(num_rows: int = 2, time: int = 12, num_phrases: int = len(PHRASES)) -> torch.Tensor:
    """Return random token ids, with a phrase here and there."""
    ids, generator = token_ids(num_rows, time), torch.Generator().manual_seed(1)
    positions = torch.rand(num_rows, time, generator=generator) < 0.4
    return torch.where(positions, torch.randint(num_phrases, ids.shape, generator=generator) + VOCAB, ids)


def make_collator(seed: int = 0, **settings) -> PhraseCollator:
    """Return a collator for the tiny models whose rows do not share all of their phrases."""
    dense = {"min_gap": 2, "phrase_rate": 1.0}  # much of everything in short rows
    options = {"negatives": [Prefixes(), SelfRetrieval()], "vocab_size": VOCAB, **dense, **settings}
    return PhraseCollator(WORDS, TokenNgrams(2, 4), generator=torch.Generator().manual_seed(seed), **options)


def phrase_batch(num_rows: int = 3, time: int = 15, seed: int = 3, **settings) -> dict[str, torch.Tensor]:
    """Return a training batch of rows of different lengths, of so few words that phrases come again."""
    rows = (token_ids(num_rows, time, seed=seed) % 5 + 1).tolist()
    features = [{"input_ids": row[: time - 2 * (number % 3)]} for number, row in enumerate(rows)]
    return make_collator(seed, **settings)(features)


KINDS = (*TARGETS, "separate_output_heads", "phrases")


def make_any(family: str, kind: str) -> PreTrainedModel:
    """Return a model of one of `KINDS` on a tiny backbone."""
    if kind != "phrases":
        return make_model(family, target=kind)
    starts = {"opt": {"phrase_start": "tokens"}, "phi": {"phrase_start": "tokens", "phrase_encoder_kind": "mean"}}
    model = make_dynamic_model(family, **starts.get(family, {}))
    for parameter in model.phrase_encoder.parameters():
        if not parameter.any():  # as after a first step: what is read by zeros has no gradient
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def new_part(model: PreTrainedModel) -> torch.nn.Module:
    """Return what a model of ours adds to its backbone."""
    return model.get_submodule("phrase_encoder" if isinstance(model, DynamicVocabForCausalLM) else "heads")


def training_inputs(kind: str, num_rows: int = 2, time: int = 16) -> dict[str, torch.Tensor]:
    """Return what a model of one of `KINDS` is trained on."""
    if kind == "phrases":
        return phrase_batch(num_rows, time)
    ids = token_ids(num_rows, time)
    return {"input_ids": ids, "labels": ids}


def make_sliding_model() -> MultiTokenForCausalLM:
    """Return heads on a backbone all of whose layers attend to a window, and cache no more than that."""
    torch.manual_seed(0)
    config = MistralConfig(
        **SMALL, num_key_value_heads=2, intermediate_size=64, sliding_window=6, bos_token_id=0, eos_token_id=0
    )
    config.initializer_range = 0.2
    return MultiTokenForCausalLM.from_base(AutoModelForCausalLM.from_config(config), ngram_size=4).eval()


def teach_heads(model: MultiTokenForCausalLM, texts: torch.Tensor, mask: torch.Tensor, steps: int = 20) -> None:
    """Train the heads alone on a few texts, so that most of their drafts of these are right, and some are not."""
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.heads.parameters(), lr=0.04)
    for _ in range(steps):
        optimizer.zero_grad()
        model(texts, attention_mask=mask, labels=texts).loss.backward()
        optimizer.step()
    model.requires_grad_(True)


@cache
def make_drafting_model(family: str = "gpt2", target: str = "difference") -> MultiTokenForCausalLM:
    """Return a float64 model whose heads draft well what it generates from the prompts of `left_padded`."""
    model = make_sliding_model() if family == "mistral" else make_model(family, target=target, loss_weight=6.0)
    model.double()
    ids, mask = left_padded()
    texts = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False, eos_token_id=None)
    teach_heads(model, texts, torch.cat([mask, mask.new_ones(len(ids), 24)], dim=1))
    return model


def takes_lengths():
    """Return whether a repetition penalty of Transformers ignores a beginning of its own length in each row."""
    try:
        RepetitionPenaltyLogitsProcessor(2.0, prompt_ignore_length=torch.tensor([1]))
    except ValueError:
        return False
    return True
