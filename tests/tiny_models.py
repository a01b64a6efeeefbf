"""Tiny randomly initialised backbones of several families, with heads, and with phrases."""

from functools import cache

import torch
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PhiConfig,
    PreTrainedModel,
    Qwen3Config,
    ReformerConfig,
)

from hf_targets import DynamicVocabForCausalLM, MultiTokenForCausalLM, PhraseCollator, PhraseVocabulary, TokenNgrams
from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.phrases.batches.negatives import Prefixes, SelfRetrieval

VOCAB = 50
_SMALL = {"vocab_size": VOCAB, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
CONFIGS = {
    "gpt_neo": lambda: GPTNeoConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        max_position_embeddings=64,
        window_size=4,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
    ),
    "llama": lambda: LlamaConfig(**_SMALL, num_key_value_heads=2, intermediate_size=64, bos_token_id=0, eos_token_id=0),
    "qwen3": lambda: Qwen3Config(
        **_SMALL,
        num_key_value_heads=2,
        intermediate_size=64,
        head_dim=8,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "opt": lambda: OPTConfig(  # projects to another width before the output embedding
        **_SMALL,
        ffn_dim=64,
        word_embed_proj_dim=16,
        max_position_embeddings=64,
        dropout=0.0,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "phi": lambda: PhiConfig(**_SMALL, intermediate_size=64, bos_token_id=0, eos_token_id=0),  # output bias
    "reformer": lambda: ReformerConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        attn_layers=["local", "lsh"],
        num_attention_heads=4,
        attention_head_size=8,
        feed_forward_size=64,
        is_decoder=True,
        axial_pos_embds=False,
        max_position_embeddings=64,
        local_attn_chunk_length=8,
        lsh_attn_chunk_length=8,
        num_buckets=2,
        hash_seed=0,
        pad_token_id=0,
        eos_token_id=0,
    ),
}
FAMILIES = tuple(CONFIGS)
CACHED_FAMILIES = tuple(name for name in FAMILIES if name != "reformer")
_NO_SDPA = ("gpt_neo", "reformer")
ATTENTIONS = (
    *((name, "sdpa") for name in FAMILIES if name not in _NO_SDPA),
    *((name, "eager") for name in FAMILIES),
)
"""Families with each attention that Transformers has for them."""
TIES = (*((name, True) for name in CACHED_FAMILIES), *((name, False) for name in FAMILIES))
"""Families with and without tied phrase embeddings: Reformer's output matrix is wider than its input matrix."""
TARGETS = ("difference", "embedding", "conditional")  # the last: differences, with heads that read the conjugate


def make_backbone(family: str = "gpt_neo", seed: int = 0, **changes) -> PreTrainedModel:
    """Return a backbone without dropout whose logits are far from uniform."""
    torch.manual_seed(seed)
    config = CONFIGS[family]()
    for name in config.to_dict():
        if name.endswith(("dropout", "pdrop", "dropout_prob")):
            setattr(config, name, 0.0)
    for name, value in changes.items():
        setattr(config, name, value)
    config.initializer_range = 0.2
    return AutoModelForCausalLM.from_config(config).eval()


def make_model(family: str = "gpt_neo", seed: int = 0, **config) -> MultiTokenForCausalLM:
    """Return heads on a tiny backbone."""
    if config.get("target") == "conditional":
        config |= {"target": "difference", "head": "conditional"}
    return MultiTokenForCausalLM.from_base(make_backbone(family, seed), **{"ngram_size": 4, **config}).eval()


def make_dynamic_model(family: str = "gpt2", seed: int = 0, **config) -> DynamicVocabForCausalLM:
    """Return a model with a phrase encoder, other than its backbone, around a tiny backbone."""
    if family == "reformer":
        config = {"tie_phrase_embeddings": False, **config}  # its output embedding is wider than the other
    encoder = make_backbone(family, seed + 1)
    return DynamicVocabForCausalLM.from_base(make_backbone(family, seed), encoder, **config).eval()


PHRASES = ((1, 2), (3, 4, 5), (1, 2, 6), (7, 8, 9, 10))
WORDS = word_level_tokenizer([" ".join(f"w{number}" for number in range(VOCAB - 3)) + "\n"])  # as many as the models'


def make_vocabulary(*phrases: tuple[int, ...]) -> PhraseVocabulary:
    """Return a vocabulary of phrases, of `PHRASES` if none is given."""
    return PhraseVocabulary.from_token_ids(phrases or PHRASES, WORDS, vocab_size=VOCAB)


def phrase_ids(num_rows: int = 2, time: int = 12, num_phrases: int = len(PHRASES)) -> torch.Tensor:
    """Return random token ids, with a phrase here and there."""
    ids, generator = token_ids(num_rows, time), torch.Generator().manual_seed(1)
    places = torch.rand(num_rows, time, generator=generator) < 0.4
    return torch.where(places, torch.randint(num_phrases, ids.shape, generator=generator) + VOCAB, ids)


def make_collator(seed: int = 0, **settings) -> PhraseCollator:
    """Return a collator for the tiny models whose rows do not share all of their phrases."""
    dense = {"min_gap": 2, "phrase_rate": 1.0, "false_negatives": "at_tokens"}  # much of everything in short rows
    options = {"negatives": [Prefixes(), SelfRetrieval()], "vocab_size": VOCAB, **dense, **settings}
    return PhraseCollator(WORDS, TokenNgrams(2, 4), generator=torch.Generator().manual_seed(seed), **options)


def phrase_batch(num_rows: int = 3, time: int = 15, seed: int = 3, **settings) -> dict[str, torch.Tensor]:
    """Return a training batch of rows of different lengths, of so few words that phrases come again."""
    rows = (token_ids(num_rows, time, seed=seed) % 5 + 1).tolist()
    features = [{"input_ids": row[: time - 2 * (number % 3)]} for number, row in enumerate(rows)]
    return make_collator(seed, **settings)(features)


KINDS = (*TARGETS, "phrases")


def make_any(family: str, kind: str) -> PreTrainedModel:
    """Return a model of one of `KINDS` on a tiny backbone."""
    return make_dynamic_model(family) if kind == "phrases" else make_model(family, target=kind)


def new_part(model: PreTrainedModel) -> torch.nn.Module:
    """Return what a model of ours adds to its backbone."""
    return model.get_submodule("phrase_encoder" if isinstance(model, DynamicVocabForCausalLM) else "heads")


def training_inputs(kind: str, num_rows: int = 2, time: int = 16) -> dict[str, torch.Tensor]:
    """Return what a model of one of `KINDS` is trained on."""
    if kind == "phrases":
        return phrase_batch(num_rows, time)
    ids = token_ids(num_rows, time)
    return {"input_ids": ids, "labels": ids}


def token_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    """Return random token ids, none of them 0, the end token."""
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def make_sliding_model() -> MultiTokenForCausalLM:
    """Return heads on a backbone all of whose layers attend to a window, and cache no more than that."""
    torch.manual_seed(0)
    config = MistralConfig(
        **_SMALL, num_key_value_heads=2, intermediate_size=64, sliding_window=6, bos_token_id=0, eos_token_id=0
    )
    config.initializer_range = 0.2
    return MultiTokenForCausalLM.from_base(AutoModelForCausalLM.from_config(config), ngram_size=4).eval()


def teach_heads(model: MultiTokenForCausalLM, texts: torch.Tensor, mask: torch.Tensor, steps: int = 80) -> None:
    """Train the heads alone on a few texts, so that most of their drafts of these are right, and some are not."""
    model.backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.heads.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(texts, attention_mask=mask, labels=texts).loss.backward()
        optimizer.step()
    model.requires_grad_(True)


def left_padded(num_rows: int = 4, time: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Return prompts of different lengths, padded on the left with 0, and their mask."""
    ids = token_ids(num_rows, time)
    mask = (torch.arange(time) >= torch.arange(num_rows)[:, None] % 4).long()
    return ids * mask, mask


@cache
def make_drafting_model(family: str = "gpt2", target: str = "difference") -> MultiTokenForCausalLM:
    """Return a float64 model whose heads draft well what it generates from the prompts of `left_padded`."""
    model = make_sliding_model() if family == "mistral" else make_model(family, target=target, loss_weight=6.0)
    model.double()
    ids, mask = left_padded()
    texts = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=False, eos_token_id=None)
    teach_heads(model, texts, torch.cat([mask, mask.new_ones(len(ids), 24)], dim=1))
    return model
