import numpy as np
import pytest
import torch
from accelerate import cpu_offload
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel

from hf_targets import DynamicVocabForCausalLM
from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.phrases.encoder import plan_windows
from hf_targets.phrases.transplant import transplant_embeddings
from tests.memory import realigned
from tests.small_tokenizers import BPE, LEGACY, METASPACE, SENTENCES
from tests.tiny_models import VOCAB, make_backbone, make_dynamic_model, token_ids


def spelling(tokenizer, number: int) -> str:
    return tokenizer.convert_ids_to_tokens(number).replace("Ġ", " ").replace("▁", " ")


def sized(num_tokens: int, width: int = 32, **changes) -> GPT2LMHeadModel:
    """A GPT-2 with another vocabulary and width."""
    torch.manual_seed(num_tokens)
    sizes = {"n_embd": width, "n_layer": 1, "n_head": 4, "n_positions": 32}
    config = GPT2Config(vocab_size=num_tokens, bos_token_id=0, eos_token_id=0, **sizes, **changes)
    config.initializer_range = 0.2
    return GPT2LMHeadModel(config).eval()


@pytest.mark.parametrize(("family", "projection"), [("opt", "mlp"), ("llama", "linear"), ("reformer", "mlp")])
def test_a_prefix_of_a_window_is_embedded_as_it_is_alone(family, projection):
    model = make_dynamic_model(family, projection=projection, tie_phrase_embeddings=False)
    windows = token_ids(3, 6)
    positions = torch.tensor([[row, length] for row in (2, 0, 1) for length in (6, 2, 3, 1)])
    together = model.phrase_encoder(windows, positions)
    for number, (row, length) in enumerate(positions.tolist()):
        alone = model.phrase_encoder(windows[row : row + 1, :length], torch.tensor([[0, length]]))
        for one, other in zip(together, alone, strict=True):
            torch.testing.assert_close(one[number], other[0], rtol=1e-4, atol=1e-4)
    padded = torch.cat([windows, torch.full((3, 2), 7)], dim=1)
    for one, other in zip(together, model.phrase_encoder(padded, positions), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("projection", ["mlp", "linear"])
def test_new_phrases_are_as_large_as_tokens(projection, tied):
    base = make_backbone("llama")
    base.get_output_embeddings().weight.data.mul_(5)
    settings = {"projection": projection, "tie_phrase_embeddings": tied, "phrase_start": "encoder"}
    model = DynamicVocabForCausalLM.from_base(base, **settings).eval()
    windows = token_ids(64, 3, seed=3)
    inputs, outputs = model.phrase_encoder(windows, torch.tensor([[row, 3] for row in range(64)]))
    size = base.get_input_embeddings().weight.square().mean().sqrt()
    assert 0.6 < inputs.square().mean().sqrt() / size < 1.6
    assert 0.6 < outputs.square().mean().sqrt() / (size if tied else 5 * size) < 1.6


def test_the_scale_of_a_model_in_training_is_the_same_and_takes_no_random_numbers():
    scales = []
    for training in (False, True):
        base = make_backbone("gpt2").train(training)
        for module in base.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.5
        torch.manual_seed(5)
        model = DynamicVocabForCausalLM.from_base(base)
        assert model.phrase_encoder.training == training
        assert model.phrase_encoder.transformer.training == training
        scales.append((model.phrase_encoder.input_projection[-1].weight, torch.rand(1)))
    for one, other in zip(*scales, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("width", [16, 64])
def test_an_encoder_of_another_width_is_projected(width, tmp_path):
    settings = {"projection": "linear", "phrase_start": "encoder"}
    model = DynamicVocabForCausalLM.from_base(make_backbone("llama"), sized(VOCAB, width), **settings).eval()
    assert model.config.phrase_encoder_width == width
    assert model.phrase_encoder.input_projection.weight.shape == (32, width)
    model.save_pretrained(tmp_path)
    again = realigned(DynamicVocabForCausalLM.from_pretrained(tmp_path))
    positions = torch.tensor([[0, 2], [1, 3]])
    pairs = zip(*(one.phrase_encoder(token_ids(2, 4), positions) for one in (model, again)), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_an_encoder_with_the_same_tokens_is_used_as_it_is_and_without_one_the_base_is_copied():
    base, encoder = make_backbone("gpt2"), make_backbone("llama")
    model = DynamicVocabForCausalLM.from_base(base, encoder)
    assert model.phrase_encoder.transformer is encoder.model
    for encoder in (None, base):
        copied = DynamicVocabForCausalLM.from_base(base, encoder).phrase_encoder.transformer
        shared = {id(p) for p in base.parameters()} & {id(p) for p in copied.parameters()}
        assert not shared
        assert torch.equal(copied.wte.weight, base.transformer.wte.weight)


@pytest.mark.parametrize(("of_encoder", "of_base"), [(BPE, METASPACE), (BPE, LEGACY), (METASPACE, BPE), (LEGACY, BPE)])
def test_tokens_of_another_tokenizer_have_the_embedding_of_the_same_text_with_its_space(of_encoder, of_base):
    model, base = sized(len(of_encoder)), sized(len(of_base) + 3)
    before = model.transformer.wte.weight.clone()
    transformer = transplant_embeddings(model, base, of_encoder, of_base)
    new = transformer.get_input_embeddings().weight
    assert torch.equal(model.transformer.wte.weight, before)
    assert len(new) == transformer.config.vocab_size == len(of_base) + 3
    spelled = {spelling(of_base, number): number for number in range(len(of_base))}
    for text in (" cat", " the", "at"):
        own = next(id_ for id_ in range(len(of_encoder)) if spelling(of_encoder, id_) == text)
        torch.testing.assert_close(new[spelled[text]], before[own])
    few = train_bpe_tokenizer(SENTENCES, vocab_size=262)  # whose " sat" is several pieces
    small = sized(len(few))
    means = transplant_embeddings(small, base, few, of_base).get_input_embeddings().weight
    pieces = few(" sat")["input_ids"]
    assert len(pieces) > 1
    torch.testing.assert_close(means[spelled[" sat"]], small.transformer.wte.weight[pieces].mean(0))
    for number in (*of_base.all_special_ids, len(of_base)):  # no text, or no token at all
        torch.testing.assert_close(new[number], before.mean(0))


def test_an_encoder_with_other_tokens_reads_the_backbones(tmp_path):
    base = sized(len(METASPACE))
    encoder = sized(len(BPE), 16)
    for name, model, tokenizer in (("base", base, METASPACE), ("encoder", encoder, BPE)):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    given = DynamicVocabForCausalLM.from_base(base, encoder, tokenizer=METASPACE, encoder_tokenizer=BPE)
    named = DynamicVocabForCausalLM.from_base(tmp_path / "base", tmp_path / "encoder")
    for model in (given, named):
        assert model.phrase_encoder.transformer.wte.weight.shape == (len(METASPACE), 16)
    assert torch.equal(given.phrase_encoder.transformer.wte.weight, named.phrase_encoder.transformer.wte.weight)
    given.save_pretrained(tmp_path / "dynamic")
    again = realigned(DynamicVocabForCausalLM.from_pretrained(tmp_path / "dynamic"))
    positions = torch.tensor([[0, 3]])
    ids = torch.tensor([[len(METASPACE) - 1, 5, 6]])
    assert torch.equal(again.embed_phrases(ids, positions)[0], given.eval().embed_phrases(ids, positions)[0])


TOKENS = st.sampled_from([0, 1, 255, 256, 2**16, 2**24 + 1, 2**31 - 1])  # whose bytes sort otherwise than they do
LISTS = st.lists(st.lists(TOKENS, min_size=1, max_size=6).map(tuple), unique=True, max_size=25)


def plan(phrases, **settings):
    return list(plan_windows([np.array(phrase, np.int64).tobytes() for phrase in phrases], **settings))


@given(phrases=LISTS, max_tokens=st.sampled_from([1, 8, 2**14]))
@example(phrases=[(1, 2), (1, 2, 3), (1, 2, 3, 4), (2, 3)], max_tokens=2**14)
@example(phrases=[(256, 1), (1, 256), (256,), (1,)], max_tokens=8)
def test_every_phrase_is_planned_once_as_the_beginning_of_its_window(phrases, max_tokens):
    seen = []
    for windows, places, numbers in plan(phrases, max_tokens=max_tokens):
        for (window, length), number in zip(places.tolist(), numbers, strict=True):
            assert tuple(windows[window, :length].tolist()) == phrases[number]
            seen.append(number)
        assert windows.numel() <= max_tokens or len(windows) == 1
        assert set(places[:, 0].tolist()) == set(range(len(windows)))  # none is for nothing
    assert sorted(seen) == list(range(len(phrases)))


@given(phrases=LISTS)
def test_windows_are_the_phrases_that_begin_no_other(phrases):
    windows = [tuple(window) for batch, *_ in plan(phrases) for window in batch.tolist()]
    longest = [one for one in phrases if not any(other[: len(one)] == one for other in phrases if other != one)]
    assert sorted(windows) == sorted(longest)


def seeing_encoder():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    return BertLMHeadModel(BertConfig(vocab_size=VOCAB, **sizes))


@pytest.mark.parametrize(
    ("base", "encoder", "known", "says"),
    [
        (lambda: make_backbone("gpt2"), seeing_encoder, {}, "not causal"),
        (lambda: make_backbone("reformer"), lambda: None, {}, "tie_phrase_embeddings=False"),
        (
            lambda: cpu_offload(make_backbone("gpt2"), execution_device=torch.device("cpu")),
            lambda: None,
            {},
            "give phrase_encoder=",
        ),
        (lambda: sized(len(METASPACE)), lambda: sized(len(BPE)), {"tokenizer": METASPACE}, "give encoder_tokenizer="),
        (lambda: sized(len(METASPACE)), lambda: sized(len(BPE)), {"encoder_tokenizer": BPE}, "give tokenizer="),
    ],
)
def test_encoders_that_do_not_fit_are_refused(base, encoder, known, says):
    with pytest.raises(ValueError, match=says):
        DynamicVocabForCausalLM.from_base(base(), encoder(), **known)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_base_without_a_tokenizer_beside_it_is_refused_with_the_argument_that_takes_one(family, tmp_path):
    make_backbone(family, vocab_size=len(BPE)).save_pretrained(tmp_path / "base")
    sized(len(BPE)).save_pretrained(tmp_path / "encoder")
    BPE.save_pretrained(tmp_path / "encoder")
    with pytest.raises(ValueError, match=" tokenizer="):
        DynamicVocabForCausalLM.from_base(tmp_path / "base", tmp_path / "encoder")
    model = DynamicVocabForCausalLM.from_base(tmp_path / "base", tmp_path / "encoder", tokenizer=BPE)
    assert model.config.tokenizer_fingerprint is not None
