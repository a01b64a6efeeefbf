import re
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from hf_targets import DecoderSettings

SETTINGS = Path(__file__).parents[2] / "recipes" / "settings" / "train_small_lm"
SMALL = {"hidden_size": 32, "num_heads": 4, "num_layers": 3, "feed_forward_size": 48}
REFORMER = {"architecture": "reformer"}


def settings_of(name: str) -> DecoderSettings:
    """Return the decoder of a settings file of train_small_lm.py."""
    given = yaml.safe_load((SETTINGS / f"{name}.yaml").read_text(encoding="utf-8"))
    return DecoderSettings(
        **{key: value for key, value in given.items() if key in DecoderSettings.__dataclass_fields__}
    )


def num_parameters(name: str, vocab_size: int) -> int:
    given = yaml.safe_load((SETTINGS / f"{name}.yaml").read_text(encoding="utf-8"))
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings_of(name).decoder_config(vocab_size, given["block_size"]))
    return sum(parameter.numel() for parameter in model.parameters())


def test_a_gpt2_is_what_its_settings_say():
    config = DecoderSettings(**SMALL, dropout=0.3, tied=False).decoder_config(50, 16)
    assert (config.model_type, config.vocab_size, config.n_positions, config.n_inner) == ("gpt2", 50, 16, 48)
    assert (config.n_embd, config.n_layer, config.n_head, config.resid_pdrop) == (32, 3, 4, 0.3)
    assert not config.tie_word_embeddings


def test_a_reformer_is_what_its_settings_say():
    settings = DecoderSettings(
        **SMALL,
        architecture="reformer",
        dropout=0.3,
        head_size=5,
        chunk_length=8,
        num_hashes=2,
        attention_layers=["local", "lsh"],
    )
    config = settings.decoder_config(50, 16)
    assert config.attn_layers == ["local", "lsh", "local"]
    assert (config.vocab_size, config.max_position_embeddings, config.feed_forward_size) == (50, 16, 48)
    assert (config.num_attention_heads, config.attention_head_size, config.num_hashes) == (4, 5, 2)
    assert {config.hidden_dropout_prob, config.lsh_attention_probs_dropout_prob} == {0.3}
    model = settings.new_decoder(50, 16).eval()
    ids = torch.arange(16)[None]
    assert torch.equal(model(ids).logits, model(ids).logits)


def test_the_reformer_of_the_penn_treebank_has_the_papers_size():
    assert num_parameters("reformer_ptb", 10000) == 15_243_408  # 15.3M
    assert 2 * settings_of("reformer_ptb").hidden_size == 512  # 0.5M = 2 * 512^2 in each head


def test_a_tensorized_transformer_is_what_its_settings_say():
    settings = DecoderSettings(**SMALL, architecture="tensorized", dropout=0.3, head_size=5, paper_leaky=True)
    config = settings.decoder_config(50, 16)
    assert (config.model_type, config.vocab_size, config.segment_length) == ("tensorized_transformer", 50, 16)
    assert (config.num_attention_heads, config.head_dim, config.intermediate_size) == (4, 5, 48)
    assert (config.dropout, config.paper_leaky) == (0.3, True)
    assert not DecoderSettings(**SMALL, architecture="tensorized").decoder_config(50, 16).paper_leaky


def test_the_tensorized_transformer_of_the_penn_treebank_has_the_papers_size():
    assert num_parameters("tensorized_ptb", 10000) == pytest.approx(6.7e6, rel=0.01)


def test_rows_of_a_leaky_model_are_marked_and_noted():
    leaky = DecoderSettings(architecture="tensorized", paper_leaky=True)
    assert leaky.row_name("wdr-2") == "wdr-2-leaky" and leaky.note().startswith("**Leaky**")
    for causal in (DecoderSettings(), DecoderSettings(architecture="tensorized", paper_leaky=False)):
        assert causal.row_name("wdr-2") == "wdr-2" and causal.note() == ""


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"architecture": "lstm"}, "architecture must be one of gpt2, tensorized, reformer, got lstm"),
        ({"paper_leaky": True}, "paper_leaky is of architecture tensorized, got it with gpt2; leave it out"),
        ({"head_size": 8}, "head_size is of architecture tensorized and reformer, got it with gpt2; leave it out"),
        *(
            ({name: value, "architecture": "tensorized"}, f"{name} is of architecture reformer, got it with tensorized")
            for name, value in (("num_hashes", 2), ("chunk_length", 8), ("attention_layers", ["local"]))
        ),
        ({"attention_layers": ["full"], **REFORMER}, "attention_layers must be of lsh and local, got ['full']"),
        ({"attention_layers": [], **REFORMER}, "attention_layers must be of lsh and local, got []"),
        ({"chunk_length": 0}, "chunk_length must be 1 or more, got 0"),
        ({"num_hashes": 0}, "num_hashes must be 1 or more, got 0"),
        ({"head_size": -1}, "head_size must be 1 or more, got -1"),
        ({"feed_forward_size": 0}, "feed_forward_size must be 1 or more, got 0"),
    ],
)
def test_settings_of_no_decoder_are_refused(given, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        DecoderSettings(**given)


def test_blocks_that_chunks_do_not_divide_are_refused():
    settings = DecoderSettings(architecture="reformer", chunk_length=16)
    for size in (8, 16, 48):
        settings.check_block_size(size)
    with pytest.raises(ValueError, match=r"block_size must be a multiple of a Reformer's chunk_length 16.* got 40"):
        settings.check_block_size(40)
    DecoderSettings().check_block_size(40)


@pytest.mark.parametrize("architecture", ["gpt2", "tensorized"])
def test_n_is_below_what_a_block_holds(architecture):
    settings = DecoderSettings(**SMALL, architecture=architecture)
    settings.check_block_size(8, [2, 7])
    with pytest.raises(ValueError, match=r"N must be below block_size, 8, .* got ngram_sizes with 8; lower N"):
        settings.check_block_size(8, [2, 8])
