import pytest
import torch
from transformers import BertConfig, BertLMHeadModel, GPT2Config, GPT2LMHeadModel

from hf_targets import DynamicVocabForCausalLM
from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.phrases.encoder import check_causal
from hf_targets.phrases.transplant import transplant_embeddings
from tests.memory import realigned
from tests.small_tokenizers import BPE, LEGACY, METASPACE, SENTENCES
from tests.tiny_models import FAMILIES, VOCAB, make_backbone, make_dynamic_model, token_ids

families = pytest.mark.parametrize("family", FAMILIES)


def spelling(tokenizer, number: int) -> str:
    return tokenizer.convert_ids_to_tokens(number).replace("Ġ", " ").replace("▁", " ")


def sized(num_tokens: int, width: int = 32, **changes) -> GPT2LMHeadModel:
    """A GPT-2 with another vocabulary and width."""
    torch.manual_seed(num_tokens)
    sizes = {"n_embd": width, "n_layer": 1, "n_head": 4, "n_positions": 32}
    config = GPT2Config(vocab_size=num_tokens, bos_token_id=0, eos_token_id=0, **sizes, **changes)
    config.initializer_range = 0.2
    return GPT2LMHeadModel(config).eval()


@families
@pytest.mark.parametrize("projection", ["mlp", "linear"])
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


@families
def test_embeddings_have_the_widths_of_the_backbones_two_matrices(family):
    base = make_backbone(family)
    widths = (base.get_input_embeddings().weight.shape[1], base.get_output_embeddings().weight.shape[1])
    model = make_dynamic_model(family, tie_phrase_embeddings=False)
    inputs, outputs = model.phrase_encoder(token_ids(2, 4), torch.tensor([[0, 2], [1, 4], [1, 3]]))
    assert (inputs.shape, outputs.shape) == ((3, widths[0]), (3, widths[1]))
    assert not torch.equal(inputs[:, :16], outputs[:, :16])


def test_one_embedding_is_refused_where_the_matrices_have_two_widths():
    base = make_backbone("reformer")
    with pytest.raises(ValueError, match=r"the backbone's have 32 and 64; set tie_phrase_embeddings=False"):
        DynamicVocabForCausalLM.from_base(base)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("projection", ["mlp", "linear"])
def test_new_phrases_are_as_large_as_tokens(projection, tied):
    base = make_backbone("llama")
    base.get_output_embeddings().weight.data.mul_(5)
    model = DynamicVocabForCausalLM.from_base(base, projection=projection, tie_phrase_embeddings=tied).eval()
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


def test_an_encoder_that_sees_what_comes_is_refused():
    config = BertConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64
    )
    seeing = BertLMHeadModel(config)
    with pytest.raises(ValueError, match=r"BertModel is not causal.*give a causal language model"):
        DynamicVocabForCausalLM.from_base(make_backbone("gpt2"), seeing)
    assert seeing.training  # left as it was
    config.is_decoder = True
    assert check_causal(BertLMHeadModel(config).bert) == 32


@pytest.mark.parametrize("width", [16, 64])
def test_an_encoder_of_another_width_is_projected(width, tmp_path):
    model = DynamicVocabForCausalLM.from_base(make_backbone("llama"), sized(VOCAB, width), projection="linear").eval()
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
    for given in (None, base):
        copied = DynamicVocabForCausalLM.from_base(base, given).phrase_encoder.transformer
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
    for number in (*of_base.all_special_ids, len(of_base)):  # no text, or no token at all
        torch.testing.assert_close(new[number], before.mean(0))


def test_a_token_of_several_pieces_is_their_mean():
    few = train_bpe_tokenizer(SENTENCES, vocab_size=262)
    model, base = sized(len(few)), sized(len(METASPACE))
    new = transplant_embeddings(model, base, few, METASPACE).get_input_embeddings().weight
    for text in (" cat", " the", "at", " sat"):
        pieces = few(text)["input_ids"]
        number = METASPACE.convert_tokens_to_ids(text.replace(" ", "▁"))
        torch.testing.assert_close(new[number], model.transformer.wte.weight[pieces].mean(0))
    assert len(few(" cat")["input_ids"]) > 1


def test_one_tokenizer_on_both_sides_changes_nothing():
    model, base = sized(len(BPE)), sized(len(BPE))
    assert transplant_embeddings(model, base, BPE, BPE) is model.transformer
    assert transplant_embeddings(model, base, None, None) is model.transformer


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
    assert torch.equal(again.phrase_encoder(ids, positions)[0], given.eval().phrase_encoder(ids, positions)[0])


@pytest.mark.parametrize("known", [{"tokenizer": METASPACE}, {"encoder_tokenizer": BPE}, {}])
def test_other_tokens_without_their_tokenizer_are_refused(known):
    missing = "tokenizer" if "encoder_tokenizer" in known else "encoder_tokenizer"
    with pytest.raises(ValueError, match=rf"different vocabularies.*GPT2LMHeadModel was not found; give {missing}="):
        DynamicVocabForCausalLM.from_base(sized(len(METASPACE)), sized(len(BPE)), **known)
