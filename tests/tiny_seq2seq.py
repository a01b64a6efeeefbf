"""Tiny encoder-decoder backbones of several families, with heads and without, and pairs of source and text."""

from functools import cache

import torch
from torch import Tensor, nn
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BlenderbotConfig,
    M2M100Config,
    MarianConfig,
    MBartConfig,
    MT5Config,
    PegasusConfig,
    PreTrainedModel,
    T5Config,
)

from hf_targets import MultiTokenForSeq2SeqLM
from tests.tiny_backbones import VOCAB

PAD, EOS = 0, 1
_STACKS = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
    "pad_token_id": PAD,
    "bos_token_id": 2,
    "eos_token_id": EOS,
    "forced_eos_token_id": None,
    "init_std": 0.25,
}
_T5 = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "decoder_start_token_id": PAD,
    "initializer_factor": 1.5,
}
SEQ2SEQ_CONFIGS = {
    "marian": lambda: MarianConfig(**_STACKS, decoder_start_token_id=PAD, decoder_vocab_size=VOCAB),
    "bart": lambda: BartConfig(**_STACKS, decoder_start_token_id=EOS, forced_bos_token_id=None),
    "mbart": lambda: MBartConfig(**_STACKS, decoder_start_token_id=3),
    "pegasus": lambda: PegasusConfig(**_STACKS, decoder_start_token_id=PAD),
    # these two have no method that moves labels, and the first takes no positions
    "m2m_100": lambda: M2M100Config(**_STACKS, decoder_start_token_id=EOS),
    "blenderbot": lambda: BlenderbotConfig(**_STACKS, decoder_start_token_id=2),
    "t5": lambda: T5Config(**_T5),  # scales its decoder's output
    "mt5": lambda: MT5Config(**_T5),
}
SEQ2SEQ_FAMILIES = tuple(SEQ2SEQ_CONFIGS)


def make_pair_backbone(family: str = "marian", seed: int = 0) -> PreTrainedModel:
    """Return an encoder-decoder model without dropout; a bias that is added to the logits is not zero.

    The output matrix of mT5 is not tied, as in its published checkpoints, whatever its configuration says.
    """
    torch.manual_seed(seed)
    config = SEQ2SEQ_CONFIGS[family]()
    for name in ("dropout", "attention_dropout", "activation_dropout", "dropout_rate"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    model = AutoModelForSeq2SeqLM.from_config(config).eval()
    if family == "mt5":
        model.all_tied_weights_keys.pop("lm_head.weight")  # as `from_pretrained` does
        model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
    if "final_logits_bias" in dict(model.named_buffers()):
        model.final_logits_bias.normal_(0.0, 0.5)
    return model


def make_pair_model(family: str = "marian", seed: int = 0, **config) -> MultiTokenForSeq2SeqLM:
    """Return heads on a tiny encoder-decoder model."""
    if config.get("target") == "conditional":
        config |= {"target": "difference", "head": "conditional"}
    return MultiTokenForSeq2SeqLM.from_base(make_pair_backbone(family, seed), **{"ngram_size": 4, **config}).eval()


def pairs(num_rows: int = 3, source: int = 7, time: int = 6, seed: int = 0) -> dict[str, Tensor]:
    """Return sources of different lengths, padded on the right, and labels of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(num_rows)[:, None]
    mask = (torch.arange(source) < source - rows).long()
    ids = torch.randint(4, VOCAB, (num_rows, source), generator=generator) * mask
    labels = torch.randint(4, VOCAB, (num_rows, time), generator=generator)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": labels.masked_fill(torch.arange(time) >= time - rows % 3, -100),
    }


@cache
def make_pair_drafting_model(family: str, target: str) -> MultiTokenForSeq2SeqLM:
    """Return a float64 model whose heads draft well what it generates for `pairs`."""
    model = make_pair_model(family, target=target, loss_weight=6.0).double()
    batch = pairs(4)
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    texts = model.generate(**source, max_new_tokens=20, eos_token_id=None)
    optimizer = torch.optim.Adam(model.heads.parameters(), lr=4e-2)
    for _ in range(20):
        loss = model(**source, decoder_input_ids=texts[:, :-1], labels=texts[:, 1:]).loss
        optimizer.zero_grad()
        loss.backward(inputs=list(model.heads.parameters()))
        optimizer.step()
    return model.eval()
