"""Each phrase is encoded once; what is kept, in memory or in files, is what would be computed."""

import copy
import os
import pickle
from itertools import combinations

import pytest
import torch
from peft import LoraConfig, get_peft_model

from hf_targets.phrases.embedding_cache import PhraseEmbeddingCache, PhraseEmbeddingFiles, encoder_hash
from hf_targets.training.lora import add_lora
from tests.tiny_models import PHRASES, TIES, make_dynamic_model, make_vocabulary, phrase_ids, token_ids


def fresh(model, vocabulary):
    """The table of a model that has embedded nothing yet."""
    return copy.deepcopy(model).phrase_table(vocabulary)


def assert_same(one, other):
    for name in ("inputs", "outputs"):
        by_slot = [getattr(table, name)[table.slots[table.exists]] for table in (one, other)]
        torch.testing.assert_close(*by_slot, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("family", "tied"), TIES)
def test_kept_embeddings_are_those_of_each_phrase_alone(family, tied, encoded):
    model = make_dynamic_model(family, tie_phrase_embeddings=tied)
    vocabulary = make_vocabulary()
    with torch.no_grad():
        first = model.phrase_table(vocabulary)
        again = model.phrase_table(vocabulary)
        vocabulary.add_token_ids([(11, 12), (3, 4)])
        vocabulary.remove([vocabulary.vocab_size + 1])
        grown = model.phrase_table(vocabulary)
        for table in (first, again):
            for slot, phrase in enumerate(PHRASES):
                alone = model.phrase_encoder(torch.tensor([phrase]), torch.tensor([[0, len(phrase)]]))
                for ours, one in zip((table.inputs, table.outputs), alone, strict=True):
                    torch.testing.assert_close(ours[table.slots[0, slot]], one[0], rtol=1e-4, atol=1e-4)
    assert encoded == [4, 2]
    assert grown.exists.tolist() == [[True, False, True, True, True, True]]
    assert_same(grown, fresh(model, vocabulary))
    assert (first.inputs is first.outputs) == tied


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_with_gradients_or_dropout_are_made_anew(tied, encoded):
    model, vocabulary = make_dynamic_model(tie_phrase_embeddings=tied), make_vocabulary()
    for _ in range(2):
        table = model.phrase_table(vocabulary)
        assert table.inputs.requires_grad
        torch.autograd.grad(table.inputs.sum() + table.outputs.sum(), model.phrase_encoder.input_projection[-1].weight)
    model.train()
    with torch.no_grad():
        model.phrase_table(vocabulary)
        model.phrase_table(vocabulary)
    assert encoded == [4] * 4


def step(optimizer_class, **options):
    def change(model):
        optimizer = optimizer_class(model.phrase_encoder.parameters(), lr=0.1, **options)
        with torch.enable_grad():
            model(phrase_ids(), phrases=make_vocabulary(), labels=phrase_ids()).loss.backward()
        model.phrase_table(make_vocabulary())  # kept from before the step, whatever was kept before
        optimizer.step()

    return change


def scale_data(model):
    for parameter in model.phrase_encoder.parameters():
        parameter.data.mul_(1.1)  # as averaging of weights does


def load(assign):
    def change(model):
        state = {name: tensor * 1.1 for name, tensor in model.state_dict().items()}
        model.load_state_dict(state, assign=assign)

    return change


def train_adapter(tuned):
    """Change the copy of the phrase encoder that an adapter has."""
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "phrase_encoder.modules_to_save" in name:
                parameter.mul_(1.5)


def change_weight(model):
    with torch.no_grad():
        model.phrase_encoder.transformer.get_input_embeddings().weight[PHRASES[0][0], 3] += 1e-3


CHANGES = {
    "one weight": change_weight,
    "setting": lambda model: setattr(model.phrase_encoder.transformer.config, "layer_norm_epsilon", 1e-3),
    "adapter": lambda model: train_adapter(add_lora(model, 2).eval()),
    "sgd": step(torch.optim.SGD),
    "adamw": step(torch.optim.AdamW),
    "fused": step(torch.optim.AdamW, fused=True),  # which torch does not count as a change
    "data": scale_data,
    "load": load(False),
    "assign": load(True),
    "double": lambda model: model.double(),
    "half": lambda model: model.bfloat16(),
    "rounded": lambda model: model.bfloat16().float(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_the_encoder_changes_the_embeddings(change, tmp_path, encoded):
    model, vocabulary = model_with(tmp_path, tie_phrase_embeddings=False), make_vocabulary()
    with torch.no_grad():
        before = model.phrase_table(vocabulary).inputs.clone()
        CHANGES[change](model)
        after, model = model.phrase_table(vocabulary), copy.deepcopy(model)
        model.keep_phrase_embeddings(None)
        expected = model.phrase_table(vocabulary)
    assert after.inputs.dtype == expected.inputs.dtype
    assert torch.equal(after.inputs, expected.inputs)
    assert torch.equal(after.outputs, expected.outputs)
    assert encoded[-2:] == [4, 4]
    assert change == "setting" or not torch.equal(after.inputs.float(), before)


def test_another_adapter_has_other_embeddings():
    model, vocabulary = add_lora(make_dynamic_model(), 2).eval(), make_vocabulary()
    core = model.get_base_model()
    train_adapter(model)
    with torch.no_grad():
        trained = core.phrase_table(vocabulary).inputs.clone()
        with model.disable_adapter():
            original = core.phrase_table(vocabulary).inputs.clone()
            assert_same(core.phrase_table(vocabulary), make_dynamic_model().phrase_table(vocabulary))
        assert torch.equal(core.phrase_table(vocabulary).inputs, trained)
    assert not torch.allclose(trained, original)


def test_adapters_inside_the_encoder_have_embeddings_of_their_own():
    settings = {"target_modules": r".*phrase_encoder.*\.(c_attn|q_proj)", "r": 2, "init_lora_weights": False}
    tuned = get_peft_model(make_dynamic_model(), LoraConfig(**settings), adapter_name="a").eval()
    tuned.add_adapter("b", LoraConfig(**settings))
    tuned, core, vocabulary, found = tuned.eval(), tuned.get_base_model(), make_vocabulary(), {}

    def record(name):
        with torch.no_grad():
            table = core.phrase_table(vocabulary)
            assert_same(table, fresh(core, vocabulary))
        found[name] = (encoder_hash(core), table.inputs)

    for name in ("a", "b"):
        tuned.set_adapter(name)
        record(name)
    with tuned.disable_adapter():
        record("none")
    for layer in core.phrase_encoder.modules():
        if hasattr(layer, "set_scale"):
            layer.set_scale("b", 3.0)
    record("scaled")
    assert len({name for name, _ in found.values()}) == 4
    assert not any(torch.allclose(*pair) for pair in combinations([inputs for _, inputs in found.values()], 2))


def rows_of(model, *phrases):
    with torch.no_grad():
        table = model.phrase_table(make_vocabulary(*phrases))
    return table.inputs[table.slots[0]], table.outputs[table.slots[0]]


def model_with(folder, *args, **config):
    model = make_dynamic_model(*args, **config)
    model.keep_phrase_embeddings(folder)
    return model


@pytest.mark.parametrize(("family", "tied"), TIES)
def test_a_later_model_reads_the_same_bits(family, tied, tmp_path, encoded):
    first = rows_of(model_with(tmp_path, family, tie_phrase_embeddings=tied), *PHRASES)
    again = rows_of(model_with(tmp_path, family, tie_phrase_embeddings=tied), *PHRASES)
    assert encoded == [4]
    assert all(map(torch.equal, first, again))


def test_what_was_encoded_before_is_kept_too(tmp_path, encoded):
    model = make_dynamic_model()
    first = rows_of(model, *PHRASES)
    model.keep_phrase_embeddings(tmp_path)
    rows_of(model, *PHRASES)
    assert encoded == [4, 4]
    assert all(map(torch.equal, first, rows_of(model_with(tmp_path), *PHRASES)))
    assert encoded == [4, 4]


def test_each_vocabulary_of_a_batch_is_read_though_it_was_encoded_in_another(tmp_path, encoded):
    vocabularies = [make_vocabulary(), make_vocabulary((3, 4, 5), (11, 12))]
    with torch.no_grad():
        expected = model_with(tmp_path).phrase_table(vocabularies).output_rows
        for vocabulary, rows in zip(vocabularies, expected, strict=True):
            found = model_with(tmp_path).phrase_table(vocabulary).output_rows
            assert torch.equal(found, rows[: len(vocabulary)])
    assert encoded == [5]


def test_the_folder_stays_below_its_bound_and_the_newest_stay(tmp_path):
    files = PhraseEmbeddingFiles(tmp_path, max_bytes=10_000)
    for number in range(20):
        files.write({str(number): [torch.full((100, 6), float(number))]})
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 10_000
    assert [files.read(str(number), [(100, 6)]) is None for number in range(20)] == [True] * 16 + [False] * 4


def test_files_tell_phrases_of_the_same_tokens_apart(tmp_path):
    for phrases in ([(1, 2), (3, 4, 5)], [(1, 2, 3), (4, 5)]):
        found = rows_of(model_with(tmp_path), *phrases)
        assert all(map(torch.equal, found, rows_of(make_dynamic_model(), *phrases)))


@pytest.mark.parametrize("kept", ["memory", "files"])
def test_embeddings_of_autocast_are_not_taken_for_others(kept, tmp_path, encoded):
    types, model = [], model_with(tmp_path)
    for enabled in (False, True, False):
        model = model if kept == "memory" else model_with(tmp_path)
        model.keep_phrase_embeddings(tmp_path if kept == "files" else None)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            types.append(rows_of(model, *PHRASES)[0].dtype)
    assert types == [torch.float32, torch.bfloat16, torch.float32]
    assert encoded == ([4] * 3 if kept == "memory" else [4] * 2)


@pytest.mark.parametrize("damage", ["truncated", "folder"])
def test_files_that_cannot_be_read_or_written_cost_a_log_line_and_the_time_to_encode(damage, tmp_path, encoded, caplog):
    expected, _ = rows_of(model_with(tmp_path), *PHRASES)
    (file,) = tmp_path.iterdir()
    if damage == "truncated":
        os.truncate(file, file.stat().st_size // 2)
    else:
        file.unlink()
        file.mkdir()
    assert torch.equal(rows_of(model_with(tmp_path), *PHRASES)[0], expected)
    assert encoded == [4, 4] and "cannot be read" in caplog.text
    assert damage == "truncated" or "cannot be written" in caplog.text


def test_copies_and_pickles_of_a_model_use_the_same_folder_and_begin_with_nothing_in_memory(tmp_path, encoded):
    model = model_with(tmp_path)
    expected, _ = rows_of(model, *PHRASES)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(rows_of(other, *PHRASES)[0], expected)
        other.keep_phrase_embeddings(None)
        assert torch.equal(rows_of(copy.deepcopy(other), *PHRASES)[0], expected)
    assert encoded == [4] * 3


def test_embeddings_of_inference_mode_serve_other_modes():
    model, vocabulary, ids = make_dynamic_model(), make_vocabulary(), phrase_ids()
    with torch.inference_mode():
        expected = model(ids, phrases=vocabulary).logits
    with torch.no_grad():
        assert torch.equal(model(ids, phrases=vocabulary).logits, expected)
        table = model.phrase_table(vocabulary)
    model(ids, phrases=vocabulary, labels=ids).loss.backward()
    model(ids, phrases=table, labels=ids).loss.backward()


def test_too_many_phrases_drop_those_of_earlier_calls(encoded):
    model, more = make_dynamic_model(), [tuple(row) for row in (token_ids(40, 3, seed=7) % 40 + 1).tolist()]
    model._embeddings = PhraseEmbeddingCache(max_phrases=6)
    first, second, third = make_vocabulary(*PHRASES[:4]), make_vocabulary(*more[:3]), make_vocabulary(*more)
    with torch.no_grad():
        expected = {vocabulary: fresh(model, vocabulary) for vocabulary in (first, second, third)}
        encoded.clear()
        for vocabulary in (first, first, second, first, second, second, third):
            assert_same(model.phrase_table(vocabulary), expected[vocabulary])
    assert encoded == [4, 3, 4, 3, len(more)]
