import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_targets import DynamicVocabForCausalLM, PhraseVocabulary
from hf_targets.backbones.reformer.repair import repair_reformer
from hf_targets.data.tokenization import word_level_tokenizer
from hf_targets.maths.losses import IGNORED
from tests.memory import realigned
from tests.tiny_models import (
    PHRASES,
    VOCAB,
    WORDS,
    make_backbone,
    make_dynamic_model,
    make_vocabulary,
    phrase_batch,
    phrase_ids,
    token_ids,
)

NEAR = {"rtol": 1e-4, "atol": 1e-4}


def empty_vocabularies() -> list:
    removed = make_vocabulary()
    removed.remove(list(removed))
    none = PhraseVocabulary(WORDS, vocab_size=VOCAB)
    return [None, none, [none, none], removed, [none, removed]]


@pytest.mark.parametrize(("family", "attention"), [("llama", "sdpa"), ("reformer", "eager")])
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


@pytest.mark.parametrize(("family", "tied"), [("opt", True), ("phi", False), ("reformer", False)])
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
    torch.testing.assert_close(output.logits, expected, **NEAR)
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


def test_a_ragged_batch_is_its_rows_alone():
    model, (vocabularies, ids) = make_dynamic_model("opt"), ragged()
    together = model(ids, phrases=vocabularies, labels=ids)
    assert together.logits.shape == (4, 10, VOCAB + 4)
    losses = []
    for row, vocabulary in enumerate(vocabularies):
        alone = model(ids[row : row + 1], phrases=vocabulary, labels=ids[row : row + 1])
        width = VOCAB + vocabulary.num_ids
        torch.testing.assert_close(together.logits[row, :, :width], alone.logits[0], **NEAR)
        assert (together.logits[row, :, width:] == -torch.inf).all()
        losses.append(alone.loss)
    assert (together.logits[1, :, VOCAB] == -torch.inf).all()  # the removed one
    torch.testing.assert_close(together.loss, torch.stack(losses).mean(), **NEAR)
    torch.testing.assert_close(together.row_losses["phrase"], torch.stack(losses).detach() * 9, **NEAR)


@torch.no_grad()
def test_a_phrase_is_one_position_of_the_cache():
    model, vocabulary, ids = make_dynamic_model("llama"), make_vocabulary(), phrase_ids()
    ids[:, 6] = torch.tensor([VOCAB, VOCAB + 3])
    whole = model(ids, phrases=vocabulary).logits
    first = model(ids[:, :6], phrases=vocabulary, use_cache=True)
    torch.testing.assert_close(first.logits, whole[:, :6], **NEAR)
    embeddings = model.phrase_table(vocabulary).inputs
    for refed in (False, True):
        cache = copy.deepcopy(first.past_key_values)
        for index in range(6, 12):
            given = {"input_ids": ids[:, index : index + 1]}
            if refed and index == 6:
                given = {"inputs_embeds": embeddings[[0, 3]][:, None]}
            step = model(**given, phrases=vocabulary, past_key_values=cache, use_cache=True)
            torch.testing.assert_close(step.logits[:, 0], whole[:, index], **NEAR)
            assert cache.get_seq_length() == index + 1


def test_logits_of_phrases_in_bfloat16_are_near_those_in_full_precision():
    model, ids, vocabulary = make_dynamic_model("phi"), phrase_ids(), make_vocabulary()
    logits = model(ids, phrases=vocabulary).logits
    halved = model.bfloat16()(ids, phrases=vocabulary).logits
    assert halved.dtype == torch.bfloat16
    assert (halved.float() - logits).std() < 0.1 * logits.std()


MODEL = make_dynamic_model()


@pytest.mark.parametrize(
    ("phrases", "ids", "says"),
    [
        (PhraseVocabulary(WORDS, vocab_size=60), [[1]], "must begin at 50"),
        ([make_vocabulary()] * 2, [[1]] * 3, "got 2 for a batch of 3"),
        ([make_vocabulary()] * 2, [[1]] * 4, "got 2 for a batch of 4"),
        ([make_vocabulary(), make_vocabulary((1, 2))], [[53], [53]], "got 53 in row 1"),
        ([(1, 2)], [[1]], "got tuple"),
        (None, [[1, 50]], "give its vocabulary"),
        (PhraseVocabulary(WORDS, vocab_size=VOCAB), [[50]], "give its vocabulary"),
    ],
)
def test_phrases_and_ids_that_do_not_fit_are_refused(phrases, ids, says):
    with pytest.raises(ValueError, match=says):
        MODEL(torch.tensor(ids), phrases=phrases)


def with_value(position, value):
    def change(tensor):
        tensor[position] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("labels", with_value((0, 0), 54)),
        ("phrase_windows", with_value((0, 0), -1)),
        ("phrase_windows", with_value((0, 1), 99)),
        ("windows", with_value((0, 0), 50)),
        ("phrase_input_ids", with_value((0, 0), 9999)),
        ("phrase_targets", with_value((0, 0), -7)),
        ("phrase_attention_mask", lambda t: t[:, 1:]),
        ("token_positions", with_value((0, 1), 15)),
        ("phrase_mask", lambda t: t[:, 1:]),
        ("token_positions", None),
        ("token_type_ids", lambda t: torch.zeros(1)),
        ("phrases", lambda t: make_vocabulary()),
    ],
)
def test_a_training_batch_that_points_nowhere_or_has_something_else_beside_is_refused(name, change):
    batch = phrase_batch()
    given = batch.pop(name, torch.zeros(0))
    if change is not None:
        batch[name] = change(given.clone())
    with pytest.raises(ValueError, match=name):
        MODEL(**batch)


def test_a_resized_model_reads_phrases_of_its_new_tokens_and_takes_the_tokenizer_that_has_grown_with_it():
    tokenizer = copy.deepcopy(WORDS)
    model = DynamicVocabForCausalLM.from_base(make_backbone("gpt2"), tokenizer=tokenizer)
    tokenizer.add_tokens(["new"])
    model.resize_token_embeddings(VOCAB)
    assert model.config.tokenizer_fingerprint is not None  # nothing has changed
    table = model.phrase_table(make_vocabulary())
    model.resize_token_embeddings(VOCAB + 1)
    for module in (model.backbone, model.phrase_encoder.transformer):
        assert module.get_input_embeddings().weight.shape[0] == VOCAB + 1
    assert model.config.get_text_config().vocab_size == VOCAB + 1
    phrases = PhraseVocabulary.from_token_ids([[3, VOCAB]], tokenizer, vocab_size=VOCAB + 1)
    assert model(token_ids(1, 5), phrases=phrases).logits.shape[-1] == VOCAB + 2
    for old in (make_vocabulary(), table):
        with pytest.raises(ValueError, match="must begin at 51"):
            model(token_ids(1, 5), phrases=old)


def test_vocabularies_of_another_tokenizer_are_refused(tmp_path):
    other = word_level_tokenizer([" ".join(f"q{number}" for number in range(VOCAB - 3)) + "\n"])
    phrases = PhraseVocabulary.from_token_ids([[3, 4]], other, vocab_size=VOCAB)
    with pytest.raises(ValueError, match="no special token"):  # by its end, where the model keeps no fingerprint
        DynamicVocabForCausalLM.from_base(make_backbone("llama", eos_token_id=5)).phrase_table(phrases)
    model = DynamicVocabForCausalLM.from_base(make_backbone(), tokenizer=WORDS).eval()
    theirs = PhraseVocabulary.from_token_ids([[5, 6]], other, vocab_size=VOCAB)
    model.save_pretrained(tmp_path)
    for one in (model, DynamicVocabForCausalLM.from_pretrained(tmp_path)):
        one(token_ids(2, 5), phrases=make_vocabulary())
        with pytest.raises(ValueError, match="the tokenizer of the model"):
            one(token_ids(2, 5), phrases=theirs)
    with pytest.raises(ValueError, match="of the other rows"):
        MODEL(token_ids(2, 5), phrases=[make_vocabulary(), theirs])
