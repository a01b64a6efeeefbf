"""What the padding of a sentence costs under each protocol: on rows a^k, k uniform on 1 to 16, of entropy log 16."""

import math
from itertools import combinations
from typing import get_args

import pytest
import torch
from datasets import Dataset, concatenate_datasets

from hf_targets import MdlmConfig, MdlmForMaskedDiffusion
from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.masked_diffusion.backbone import BackboneOutput
from hf_targets.masked_diffusion.perplexity_bound import perplexity_bound
from hf_targets.masked_diffusion.rows import DiffusionCollator, LengthProtocol, sentence_rows
from hf_targets.maths.losses import IGNORED
from tests.masked_diffusion.models import make_mdlm
from tests.masked_diffusion.training import make_trainer

LONGEST = 16
TEXTS = Dataset.from_dict({"text": ["a " * k + "\n" for k in range(1, LONGEST + 1)]})
TOKENIZER = word_level_tokenizer(TEXTS["text"])
TOKENIZER.add_special_tokens({"mask_token": "<mask>"})
MASK, PAD = TOKENIZER.mask_token_id, TOKENIZER.pad_token_id
protocols = pytest.mark.parametrize("protocol", get_args(LengthProtocol))


def rows_of(protocol: str, times: int = 1) -> Dataset:
    rows = sentence_rows(TEXTS, TOKENIZER, LONGEST + 1, protocol)
    return rows.select(list(range(LONGEST)) * times)


def random_model() -> MdlmForMaskedDiffusion:
    return make_mdlm(vocab_size=len(TOKENIZER), mask_token_id=MASK, max_position_embeddings=LONGEST + 1)


def optimal_model(protocol: str) -> MdlmForMaskedDiffusion:
    """Return a model that gives each token its exact chance, given the canvas and what padding is hidden."""
    size = 8
    config = MdlmConfig(
        vocab_size=size, hidden_size=size, num_hidden_layers=1, num_attention_heads=2, mask_token_id=MASK
    )
    model = MdlmForMaskedDiffusion(config).eval().double()
    texts = torch.tensor(rows_of("predicted")["input_ids"][:])
    lengths = torch.arange(2, LONGEST + 2)

    def denoise(canvas, attention_mask, *others):
        width = canvas.shape[1]
        unknown = (canvas == MASK) | (attention_mask == 0)
        fits = ((canvas[:, None] == texts[None, :, :width]) | unknown[:, None]).all(dim=2)
        if protocol == "conditional":
            fits &= attention_mask.sum(dim=1)[:, None] == lengths
        chances = torch.nn.functional.one_hot(texts[:, :width], size).double()
        chances = torch.einsum("bk,klv->blv", fits.double(), chances) / fits.sum(dim=1)[:, None, None]
        return BackboneOutput(hidden=chances.clamp(min=1e-300).log())

    model.backbone.forward = denoise
    with torch.no_grad():
        output = model.get_output_embeddings()
        output.weight.copy_(torch.eye(size))
        output.bias.zero_()
    return model


def nats_a_row(protocol: str, times: int) -> tuple[float, float]:
    """Return the bound of the optimal model for each of so many times all rows, and its standard error."""
    rows = rows_of(protocol, times=times)
    found = perplexity_bound(optimal_model(protocol), rows, num_draws=16, batch_size=64)
    scale = found.num_tokens / len(rows)
    assert scale == pytest.approx((LONGEST + 1) / 2 + 1)
    return found.nelbo * scale, found.standard_error * scale


def test_the_bound_of_predicted_padding_is_the_entropy_of_the_rows_and_the_others_are_below_it():
    found, error = nats_a_row("predicted", 12)
    assert error < 0.1
    assert math.log(LONGEST) == pytest.approx(found, abs=4 * error + 2e-3 * found)
    published, error = nats_a_row("published", 4)
    assert 0.2 < published < 0.9 * math.log(LONGEST) - 4 * error
    assert nats_a_row("conditional", 1)[0] == pytest.approx(0, abs=1e-9), "the length says all there is to say"


def test_a_length_protocol_says_what_is_masked_what_is_counted_and_what_the_model_sees():
    texts = Dataset.from_dict({"text": ["a a\n"]})
    rows = {name: sentence_rows(texts, TOKENIZER, 5, name)[0] for name in get_args(LengthProtocol)}
    text, end = TOKENIZER("a a\n")["input_ids"], [PAD, PAD]
    ones = {"attention_mask": [1] * 5, "input_ids": text + end, "num_words": 3}
    assert rows["predicted"] == {**ones, "labels": text + end, "num_tokens": 3}
    assert rows["published"] == {**ones, "labels": [*text, IGNORED, IGNORED], "may_mask": [1] * 5}
    assert rows["conditional"] == {"input_ids": text, "labels": text, "attention_mask": [1] * 3, "num_words": 3}
    assert sentence_rows(texts, TOKENIZER, 5)[0] == rows["predicted"]


@protocols
def test_an_evaluation_in_training_is_the_bound_in_batches_of_any_size(protocol, tmp_path):
    model, rows = random_model(), rows_of(protocol)
    expected = perplexity_bound(model, rows, num_draws=3, batch_size=1)
    for size in (3, 16):
        options = {"evaluation_draws": 3, "per_device_eval_batch_size": size, "ema_decay": None}
        found = make_trainer(tmp_path, model, rows, rows, tokenizer=TOKENIZER, **options).evaluate()
        again = perplexity_bound(model, rows, num_draws=3, batch_size=size)
        assert found["eval_nelbo"] == pytest.approx(expected.nelbo, rel=1e-5)
        assert again.nelbo == pytest.approx(expected.nelbo, rel=1e-5)
        assert found["eval_word_perplexity"] == pytest.approx(expected.per_word, rel=1e-4)
    assert expected.num_tokens == expected.num_words == sum(range(2, LONGEST + 2))


def published_loss(model, text, attention_mask, canvas, times) -> torch.Tensor:
    """The published program's `_loss` with its log-linear noise, in float64, for a canvas that it has drawn."""
    sigma = -torch.log1p(-(1 - 1e-3) * times)
    rate = (1 - 1e-3) / (1 - (1 - 1e-3) * times)
    logp = model(canvas).logits.gather(-1, text[:, :, None])[:, :, 0]
    nlls = -logp * (rate / torch.expm1(sigma))[:, None] * attention_mask
    return nlls.sum() / attention_mask.sum()


def test_published_rows_have_the_loss_of_the_published_program_in_training_and_in_evaluation():
    model = random_model().double()
    batch = DiffusionCollator(TOKENIZER)(rows_of("published").to_list())
    counted = (batch["labels"] != IGNORED).double()
    with torch.no_grad():
        output = model(
            **{name: batch[name] for name in ("input_ids", "labels", "attention_mask", "may_mask")},
            generator=torch.Generator().manual_seed(0),
        )
        times = output.timesteps.double()
        expected = published_loss(model, batch["input_ids"], counted, output.canvas, times)
        torch.testing.assert_close(output.loss, expected, rtol=1e-6, atol=0)
        given = model(output.canvas, labels=batch["labels"], timesteps=output.timesteps)
    torch.testing.assert_close(given.loss, expected, rtol=1e-6, atol=0)
    pads = batch["input_ids"] == PAD
    assert 0.3 < (output.canvas[pads] == MASK).double().mean() < 0.7, "padding is masked as text is"


@pytest.mark.parametrize("pad_token", [None, "<eos>"])
def test_a_protocol_that_is_unknown_or_that_its_tokenizer_cannot_pad_is_refused(pad_token):
    tokenizer = word_level_tokenizer(TEXTS["text"])
    tokenizer.pad_token = pad_token
    assert sentence_rows(TEXTS, tokenizer, 5, "conditional")
    for protocol, word in (("predicted", "padding token"), ("published", "padding token"), ("padded", "padded")):
        with pytest.raises(ValueError, match=word):
            sentence_rows(TEXTS, tokenizer, 5, protocol)


def evaluation(folder, rows):
    train = rows_of("predicted")
    options = {"tokenizer": TOKENIZER, "per_device_eval_batch_size": 1, "ema_decay": None}
    return make_trainer(folder, random_model(), train, train, **options).evaluate(rows)


@pytest.mark.parametrize("names", list(combinations(get_args(LengthProtocol), 2)), ids="-".join)
def test_rows_of_a_bound_a_batch_or_a_trainer_are_of_one_length_protocol(names, tmp_path):
    parts = [rows_of(name).select([3, 5]) for name in names]
    rows, mixed = [row for part in parts for row in part], concatenate_datasets(parts)
    for measure in (
        lambda: perplexity_bound(random_model(), rows),
        lambda: DiffusionCollator(TOKENIZER)(rows),
        lambda: make_trainer(tmp_path, random_model(), mixed, tokenizer=TOKENIZER),
    ):
        with pytest.raises(ValueError, match="one length_protocol"):
            measure()


def test_words_of_some_rows_make_no_figure_and_of_none_none_a_word(tmp_path):
    counted = rows_of("conditional").to_list()[:2]
    bare = [{**row, "num_words": None} for row in counted]
    rows = [counted[0], bare[1]]
    for measure in (
        lambda: perplexity_bound(random_model(), rows),
        lambda: DiffusionCollator(TOKENIZER)(rows),
        lambda: evaluation(tmp_path, rows),
    ):
        with pytest.raises(ValueError, match="num_words"):
            measure()
    assert perplexity_bound(random_model(), bare).per_word is None
    assert "eval_word_perplexity" not in evaluation(tmp_path, bare)
