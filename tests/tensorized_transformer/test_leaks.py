import pytest
import torch
from datasets import Dataset
from transformers import DynamicCache, GPT2Config

from hf_targets import LEAKY_USAGE, MultiTokenTrainer, MultiTokenTrainingArguments
from hf_targets.backbones.leaks import check_leaky_name, is_leaky
from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.training.comparison import train_run
from hf_targets.training.lora import add_lora
from hf_targets.training.model_card import describe
from tests.tensorized_transformer.models import SEGMENT, make_config, make_heads, make_tensorized
from tests.tiny_backbones import make_backbone, token_ids

CANNOT = "reads the tokens that follow, and cannot generate what is not written yet; train one with paper_leaky=False"


def leaky_heads():
    return make_heads("difference", ngram_size=3, paper_leaky=True)


LEAKY = {
    "configuration": lambda: make_config(paper_leaky=True),
    "model": lambda: make_tensorized(paper_leaky=True),
    "heads": leaky_heads,
    "configuration of heads": lambda: leaky_heads().config,
}


@pytest.mark.parametrize("kind", LEAKY)
def test_a_leaky_model_is_known_by_its_configuration_also_inside_of_another(kind):
    assert is_leaky(LEAKY[kind]())


@pytest.mark.parametrize("make", [make_config, make_tensorized, GPT2Config, lambda: make_backbone("gpt2")])
def test_causal_models_are_not_leaky(make):
    assert not is_leaky(make())


@pytest.mark.parametrize("make", [lambda: make_tensorized(paper_leaky=True), leaky_heads], ids=["bare", "heads"])
def test_a_leaky_model_is_trained_beside_others_only_under_a_name_that_says_so(make, tmp_path):
    rows = Dataset.from_dict({"input_ids": token_ids(4, 8).tolist(), "labels": token_ids(4, 8).tolist()})
    corpus = dict.fromkeys(("train", "validation", "test"), rows)
    args = MultiTokenTrainingArguments(str(tmp_path), max_steps=1, report_to="none", use_cpu=True, disable_tqdm=True)
    with pytest.raises(ValueError, match=r"the model plain has paper_leaky=True: .* name it plain-leaky"):
        train_run("plain", make, args, corpus, make_trainer=MultiTokenTrainer)
    with pytest.raises(ValueError, match="plain-leaky is for a model that reads the tokens that it predicts"):
        train_run("plain-leaky", make_tensorized, args, corpus, make_trainer=MultiTokenTrainer)
    assert not list(tmp_path.iterdir())
    run, _ = train_run("plain-leaky", make, args, corpus, make_trainer=MultiTokenTrainer)
    assert run.name == "plain-leaky"


def test_a_leaky_model_says_so(caplog):
    make_tensorized()
    assert not caplog.records
    make_tensorized(paper_leaky=True)
    assert "reads the tokens that it predicts: do not compare its perplexities" in caplog.text
    assert "its perplexities are not comparable" in describe(make_config(paper_leaky=True))
    assert describe(make_config()) == "A Tensorized Transformer of 2 layers"
    assert describe(make_config(num_hidden_layers=1)) == "A Tensorized Transformer of 1 layer"


def test_a_leaky_model_does_not_generate():
    model, ids = make_tensorized(paper_leaky=True), token_ids(2, 2 * SEGMENT)
    for run in (model.generate, leaky_heads().generate):
        with pytest.raises(ValueError, match=CANNOT):
            run(ids, max_new_tokens=2)
    with pytest.raises(ValueError, match=CANNOT):
        leaky_heads().generate(ids, max_new_tokens=2, draft_tokens=1)


def test_the_same_weights_are_causal_once_the_configuration_says_so():
    model, ids = make_tensorized(paper_leaky=True), token_ids(2, 2 * SEGMENT)
    model.config.paper_leaky = False
    assert torch.equal(model(ids).logits, make_tensorized()(ids).logits)
    assert torch.equal(model.generate(ids, max_new_tokens=2), make_tensorized().generate(ids, max_new_tokens=2))


@pytest.mark.parametrize("time", [1, SEGMENT - 1, SEGMENT + 1, 3 * SEGMENT - 1])
def test_a_text_that_does_not_fill_its_segments_is_refused(time):
    told = f"segment_length=4, so its length must be a multiple of 4, got {time}; choose such a block_size, or pad"
    with pytest.raises(ValueError, match=told):
        make_tensorized(paper_leaky=True)(token_ids(2, time))


def test_texts_packed_into_a_segment_and_caches_are_refused():
    model, ids = make_tensorized(paper_leaky=True), token_ids(2, 2 * SEGMENT)
    apart = torch.arange(SEGMENT).repeat(2).expand(2, -1)
    assert torch.equal(model(ids, position_ids=apart).logits, model(ids).logits)
    for packed in ([0, 1, 2, 0, 1, 2, 3, 4], [0] * 8, [0, 1, 2, 3, 4, 4, 5, 6]):
        with pytest.raises(ValueError, match="position_ids restart inside of one; leave out position_ids"):
            model(ids, position_ids=torch.tensor([packed]))
    assert model(ids, use_cache=True).past_key_values is None
    assert model(ids, past_key_values=DynamicCache()).past_key_values is None
    with pytest.raises(ValueError, match="paper_leaky=True takes no cache of earlier positions"):
        model(ids, past_key_values=make_tensorized()(ids).past_key_values)


def test_padding_of_a_segment_is_not_read():
    model, ids = make_tensorized(paper_leaky=True).double(), token_ids(2, 2 * SEGMENT)
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    other = torch.where(mask.bool(), ids, token_ids(*ids.shape, seed=9))
    expected, found = (model(text, attention_mask=mask).logits[:, :-3] for text in (ids, other))
    torch.testing.assert_close(found, expected)
    assert not torch.isclose(model(ids).logits[:, SEGMENT], expected[:, SEGMENT]).any()
    assert torch.equal(model(ids).logits[:, :SEGMENT], expected[:, :SEGMENT])
    positions = mask.cumsum(1) - 1
    for padded in (positions, positions.masked_fill(mask == 0, 1)):  # both are common
        assert torch.equal(model(ids, attention_mask=mask, position_ids=padded).logits[:, :-3], expected)
    with pytest.raises(ValueError, match="attention_mask has padding before text in one; pad on the right"):
        model(ids, attention_mask=mask.flip(1))


def test_texts_may_be_padded_to_the_end_of_their_segments():
    model, ids = make_tensorized(paper_leaky=True), token_ids(2, 2 * SEGMENT)
    mask = torch.ones_like(ids)
    mask[:, SEGMENT - 1] = 0
    apart = torch.arange(SEGMENT).repeat(2).expand(2, -1)
    logits = model(ids, attention_mask=mask, position_ids=apart).logits
    torch.testing.assert_close(logits[:, SEGMENT:], model(ids).logits[:, SEGMENT:])


def test_heads_train_on_a_leaky_model_as_in_the_paper():
    model, ids = leaky_heads().train(), token_ids(2, 2 * SEGMENT)
    output = model(ids, labels=ids)
    output.loss.backward()
    assert output.loss_parts.keys() == {"next_token", "head_1", "head_2"}
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("make", [lambda: make_tensorized(paper_leaky=True), leaky_heads], ids=["bare", "heads"])
def test_the_code_on_its_card_runs(make, tmp_path, capsys):
    make().save_pretrained(tmp_path)
    word_level_tokenizer(["The cat\n"]).save_pretrained(tmp_path)
    exec(f"{LEAKY_USAGE.load}\n{LEAKY_USAGE.run}".replace("{name}", str(tmp_path)), {})
    assert capsys.readouterr().out == f"torch.Size([1, {SEGMENT}, 50])\n"


@pytest.mark.parametrize("wrap", [lambda model: add_lora(model, 2), torch.compile], ids=["lora", "compiled"])
def test_a_leaky_model_in_another_one_is_found(wrap):
    with pytest.raises(ValueError, match="paper_leaky=True"):
        check_leaky_name("plain", wrap(leaky_heads()))
    check_leaky_name("plain", wrap(make_heads("difference", ngram_size=3)))


def test_equal_words_of_a_segment_have_equal_logits_in_the_published_model():
    model = make_tensorized(paper_leaky=True).eval()
    ids = token_ids(1, SEGMENT)
    ids[0, 2] = ids[0, 0]
    logits = model(ids).logits[0]
    torch.testing.assert_close(logits[0], logits[2])
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)
