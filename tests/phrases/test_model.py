import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_targets import DynamicVocabConfig, DynamicVocabForCausalLM, PhraseVocabulary, repair_reformer
from hf_targets.maths.losses import IGNORED
from hf_targets.phrases.configuration import BASE_FIELDS
from tests.memory import realigned
from tests.tiny_models import (
    ATTENTIONS,
    CACHED_FAMILIES,
    FAMILIES,
    PHRASES,
    TIES,
    VOCAB,
    WORDS,
    make_backbone,
    make_dynamic_model,
    make_vocabulary,
    phrase_batch,
    phrase_ids,
    token_ids,
)

families = pytest.mark.parametrize("family", FAMILIES)
cached_families = pytest.mark.parametrize("family", CACHED_FAMILIES)
near = {"rtol": 1e-4, "atol": 1e-4}


def empty_vocabularies() -> list:
    removed = make_vocabulary()
    removed.remove(list(removed))
    none = PhraseVocabulary(WORDS, vocab_size=VOCAB)
    return [None, none, [none, none], removed, [none, removed]]


@pytest.mark.parametrize(("family", "attention"), ATTENTIONS)
def test_without_phrases_the_logits_are_the_backbones_bit_for_bit(family, attention, tmp_path):
    base = make_backbone(family)
    base.save_pretrained(tmp_path)
    ids = token_ids(2, 16)
    mask = torch.ones_like(ids)
    mask[0, 10:] = 0
    bare = repair_reformer(AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attention))
    bare = realigned(bare)
    expected = bare(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, IGNORED))
    changes = {"tie_phrase_embeddings": family != "reformer"}
    model = DynamicVocabForCausalLM.from_base(
        tmp_path, backbone_kwargs={"attn_implementation": attention}, **changes
    ).eval()
    model.save_pretrained(tmp_path / "dynamic")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "dynamic", attn_implementation=attention)
    for one in (realigned(model), realigned(again)):
        for phrases in empty_vocabularies():
            output = one(ids, attention_mask=mask, phrases=phrases, labels=ids.masked_fill(mask == 0, IGNORED))
            tokens, others = output.logits.split([VOCAB, output.logits.shape[-1] - VOCAB], dim=-1)
            assert torch.equal(tokens, expected.logits)
            assert (others == -torch.inf).all()
            if family != "reformer":  # which shifts its labels in a way of its own
                torch.testing.assert_close(output.loss, expected.loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("family", "tied"), TIES)
def test_logits_are_products_of_hidden_states_with_the_rows_of_both_matrices(family, tied):
    model, ids, vocabulary = make_dynamic_model(family, tie_phrase_embeddings=tied), phrase_ids(), make_vocabulary()
    windows, positions = (
        torch.zeros(4, 4, dtype=torch.long),
        torch.tensor([[row, len(p)] for row, p in enumerate(PHRASES)]),
    )
    for row, phrase in enumerate(PHRASES):
        windows[row, : len(phrase)] = torch.tensor(phrase)
    inputs, outputs = model.phrase_encoder(windows, positions)
    embeddings = torch.cat([model.get_input_embeddings().weight, inputs])[ids]
    hidden = model.backbone.base_model(inputs_embeds=embeddings)[0]
    layer = model.get_output_embeddings()
    expected = torch.cat([layer(hidden), hidden @ outputs.T], dim=-1)
    output = model(ids, phrases=vocabulary)
    assert output.logits.shape == (2, 12, VOCAB + 4)
    torch.testing.assert_close(output.logits, expected, **near)
    assert (output.logits[..., VOCAB:].std(dim=-1) > 0.01).all()
    table = model.phrase_table(vocabulary)
    assert torch.equal(model(ids, phrases=table).logits, output.logits)


def ragged():
    """Rows with vocabularies of their own, one without any phrase, one with a removed one, and their ids."""
    vocabularies = [make_vocabulary(), make_vocabulary(*PHRASES[2:], (5, 6)), make_vocabulary(*PHRASES[:2])]
    vocabularies.append(PhraseVocabulary(WORDS, vocab_size=VOCAB))
    vocabularies[1].remove([VOCAB])
    ids = phrase_ids(4, 10)
    ids[1] = torch.where(ids[1] == VOCAB, VOCAB + 1, ids[1].clamp(max=VOCAB + 2))
    ids[2].clamp_(max=VOCAB + 1)
    ids[3] = token_ids(10)
    return vocabularies, ids


@families
def test_a_ragged_batch_is_its_rows_alone(family):
    model, (vocabularies, ids) = make_dynamic_model(family), ragged()
    together = model(ids, phrases=vocabularies, labels=ids)
    assert together.logits.shape == (4, 10, VOCAB + 4)
    losses = []
    for row, vocabulary in enumerate(vocabularies):
        alone = model(ids[row : row + 1], phrases=vocabulary, labels=ids[row : row + 1])
        width = VOCAB + vocabulary.num_ids
        torch.testing.assert_close(together.logits[row, :, :width], alone.logits[0], **near)
        assert (together.logits[row, :, width:] == -torch.inf).all()
        losses.append(alone.loss)
    assert (together.logits[1, :, VOCAB] == -torch.inf).all()  # the removed one
    torch.testing.assert_close(together.loss, torch.stack(losses).mean(), **near)
    torch.testing.assert_close(together.row_losses["phrase"], torch.stack(losses).detach() * 9, **near)


def test_rows_share_the_vocabularies_out_in_order():
    model, (vocabularies, ids) = make_dynamic_model(), ragged()
    together = model(ids[:2].repeat_interleave(3, dim=0), phrases=vocabularies[:2]).logits
    for row in range(6):
        single = model(ids[row // 3][None], phrases=vocabularies[row // 3]).logits[0]
        torch.testing.assert_close(together[row, :, : single.shape[-1]], single, **near)


@cached_families
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(family, side):
    model, vocabulary = make_dynamic_model(family), make_vocabulary()
    rows = [phrase_ids(1, 7), phrase_ids(2, 12)[1:]]
    ids, mask = torch.zeros(2, 12, dtype=torch.long), torch.zeros(2, 12, dtype=torch.long)
    for number, row in enumerate(rows):
        position = slice(12 - row.shape[1], None) if side == "left" else slice(row.shape[1])
        ids[number, position], mask[number, position] = row[0], 1
    together = model(
        ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        labels=ids.masked_fill(mask == 0, IGNORED),
        phrases=vocabulary,
    )
    for number, row in enumerate(rows):
        alone = model(row, labels=row, phrases=vocabulary)
        torch.testing.assert_close(together.logits[number][mask[number] == 1], alone.logits[0], **near)
        torch.testing.assert_close(together.row_losses["phrase"][number], alone.row_losses["phrase"][0], **near)


@cached_families
@torch.no_grad()
def test_a_phrase_is_one_position_of_the_cache(family):
    model, vocabulary, ids = make_dynamic_model(family), make_vocabulary(), phrase_ids()
    ids[:, 6] = torch.tensor([VOCAB, VOCAB + 3])
    whole = model(ids, phrases=vocabulary).logits
    first = model(ids[:, :6], phrases=vocabulary, use_cache=True)
    torch.testing.assert_close(first.logits, whole[:, :6], **near)
    embeddings = model.phrase_table(vocabulary).inputs
    for refed in (False, True):
        cache = copy.deepcopy(first.past_key_values)
        for index in range(6, 12):
            given = {"input_ids": ids[:, index : index + 1]}
            if refed and index == 6:
                given = {"inputs_embeds": embeddings[[0, 3]][:, None]}
            step = model(**given, phrases=vocabulary, past_key_values=cache, use_cache=True)
            torch.testing.assert_close(step.logits[:, 0], whole[:, index], **near)
            assert cache.get_seq_length() == index + 1


@pytest.mark.parametrize(  # tied and untied matrices, two widths
    ("family", "tied"), [pair for pair in TIES if pair[0] in ("gpt2", "llama", "opt", "reformer")]
)
@pytest.mark.parametrize("projection", ["mlp", "linear"])
def test_saving_keeps_ids_and_outputs(family, projection, tied, tmp_path):
    model = make_dynamic_model(family, projection=projection, tie_phrase_embeddings=tied, kl_loss_weight=0.5)
    vocabulary, ids = make_vocabulary((20, 21), *PHRASES), phrase_ids()
    vocabulary.remove([VOCAB + 2])
    ids[ids == VOCAB + 2] = VOCAB
    model.save_pretrained(tmp_path)
    vocabulary.save(tmp_path / "phrases")
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    loaded = PhraseVocabulary.load(tmp_path / "phrases", WORDS)
    assert list(loaded) == list(vocabulary)
    assert isinstance(again, DynamicVocabForCausalLM)
    for field in (*BASE_FIELDS, "phrase_encoder_width"):
        assert getattr(again.config, field) == getattr(model.config, field)
    again.save_pretrained(tmp_path / "twice")
    twice = AutoModelForCausalLM.from_pretrained(tmp_path / "twice")
    for one in (again, twice):
        assert torch.equal(realigned(one)(ids, phrases=loaded).logits, model(ids, phrases=vocabulary).logits)


def test_only_the_logits_asked_for_are_made():
    model, vocabulary, ids = make_dynamic_model(), make_vocabulary(), phrase_ids()
    whole = model(ids, phrases=vocabulary).logits
    torch.testing.assert_close(model(ids, phrases=vocabulary, logits_to_keep=2).logits, whole[:, -2:])
    positions = torch.tensor([1, 4])
    torch.testing.assert_close(model(ids, phrases=vocabulary, logits_to_keep=positions).logits, whole[:, positions])
    assert model(ids, phrases=vocabulary, skip_logits=True).logits is None
    assert model.train()(ids, phrases=vocabulary, labels=ids).logits is None
    assert model(ids, phrases=vocabulary, labels=ids, skip_logits=False).logits is not None
    keys = {"loss", "loss_parts", "row_losses", "logits", "past_key_values"}
    assert set(model.eval()(ids, phrases=vocabulary, labels=ids, use_cache=True)) == keys


MODEL = make_dynamic_model()
REMOVED = make_vocabulary()
REMOVED.remove([VOCAB + 1])


@pytest.mark.parametrize(
    ("phrases", "ids", "says"),
    [
        (PhraseVocabulary(WORDS, vocab_size=60), [[1]], "must begin at 50.*vocab_size=50"),
        (REMOVED, [[1], [51]], "got 51 in row 1"),
        ([make_vocabulary()] * 2, [[1]] * 3, "got 2 for a batch of 3"),
        ([make_vocabulary(), make_vocabulary((1, 2))], [[53], [53]], "got 53 in row 1"),
        ([(1, 2)], [[1]], "got tuple"),
        (None, [[1, 50]], "got 50; an id from 50 on is a phrase: give its vocabulary"),
        (PhraseVocabulary(WORDS, vocab_size=VOCAB), [[50]], "give its vocabulary"),
    ],
)
def test_phrases_and_ids_that_do_not_fit_are_refused(phrases, ids, says):
    with pytest.raises(ValueError, match=says):
        MODEL(torch.tensor(ids), phrases=phrases)


def test_labels_and_batches_that_do_not_fit_are_refused():
    ids, vocabulary = phrase_ids(), make_vocabulary()
    with pytest.raises(ValueError, match="labels"):
        MODEL(ids, phrases=vocabulary, labels=ids[:, 1:])
    with pytest.raises(ValueError, match=r"labels.*got 54 in row 0"):
        MODEL(ids, phrases=vocabulary, labels=torch.full_like(ids, 54))
    for name in ("phrase_input_ids", "phrase_targets", "token_positions", "windows", "phrase_windows"):
        batch = phrase_batch()
        del batch[name]
        with pytest.raises(ValueError, match=name):
            MODEL(**batch)


def test_a_base_or_a_field_that_does_not_fit_is_refused():
    base = make_backbone()
    with pytest.raises(ValueError, match="alpha"):
        DynamicVocabForCausalLM.from_base(base, alpha=1)
    with pytest.raises(ValueError, match="has a phrase encoder already"):
        DynamicVocabForCausalLM.from_base(MODEL)
    with pytest.raises(ValueError, match="kl_support"):
        DynamicVocabConfig(kl_support="all")
    for weight in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="kl_loss_weight"):
            DynamicVocabConfig(kl_loss_weight=weight)


def test_a_resized_model_reads_phrases_of_its_new_tokens():
    model = make_dynamic_model()
    model.resize_token_embeddings(VOCAB + 10)
    for module in (model.backbone, model.phrase_encoder.transformer):
        assert module.get_input_embeddings().weight.shape[0] == VOCAB + 10
    assert model.config.get_text_config().vocab_size == VOCAB + 10
    phrases = PhraseVocabulary.from_token_ids([[3, VOCAB + 7]], WORDS, vocab_size=VOCAB + 10)
    assert model(token_ids(1, 5), phrases=phrases).logits.shape[-1] == VOCAB + 11
    with pytest.raises(ValueError, match="phrase ids must begin at 60, the number of the model's tokens"):
        model(token_ids(1, 5), phrases=make_vocabulary())


def test_a_resized_model_takes_the_tokenizer_that_has_grown_with_it():
    tokenizer = copy.deepcopy(WORDS)
    model = DynamicVocabForCausalLM.from_base(make_backbone("gpt2"), tokenizer=tokenizer)
    tokenizer.add_tokens(["new"])
    model.resize_token_embeddings(VOCAB)
    assert model.config.tokenizer_fingerprint is not None  # nothing has changed
    model.resize_token_embeddings(VOCAB + 1)
    phrases = PhraseVocabulary.from_token_ids([[3, VOCAB]], tokenizer, vocab_size=VOCAB + 1)
    assert model(token_ids(1, 5), phrases=phrases).logits.shape[-1] == VOCAB + 2
