import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peft import LoraConfig, get_peft_model

from hf_targets.phrases import embedding_cache
from hf_targets.phrases.embedding_cache import PhraseEmbeddingCache, encoder_hash
from hf_targets.training.lora import add_lora
from tests.tiny_models import PHRASES, TIES, make_dynamic_model, make_vocabulary, phrase_ids, token_ids

MORE = tuple(tuple(row) for row in (token_ids(40, 3, seed=7) % 40 + 1).tolist())


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


def test_a_phrase_of_several_rows_is_encoded_once(encoded):
    model = make_dynamic_model()
    vocabularies = [make_vocabulary(), make_vocabulary((3, 4, 5), (1, 2)), make_vocabulary((9, 9, 9))]
    with torch.no_grad():
        table = model.phrase_table(vocabularies)
    assert encoded == [len(PHRASES) + 1] == [len(table.inputs)]
    assert table.exists.sum(dim=1).tolist() == [4, 2, 1]
    assert table.slots[1, :2].tolist() == [table.slots[0, 1], table.slots[0, 0]]


@pytest.mark.parametrize("counts", [[0, 0], [2, 1], [4, 3]])
def test_phrases_to_come_are_not_encoded(counts, encoded):
    model, vocabularies = make_dynamic_model(), [make_vocabulary(), make_vocabulary(*PHRASES[:3])]
    with torch.no_grad():
        table = model.phrase_table(vocabularies, counts)
    assert table.exists.sum(dim=1).tolist() == counts
    assert table.num_slots == 4
    assert sum(encoded) == max(counts)


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


def there_and_back(model):
    model.bfloat16()
    model.float()


CHANGES = {
    "sgd": step(torch.optim.SGD),
    "adamw": step(torch.optim.AdamW),
    "fused": step(torch.optim.AdamW, fused=True),  # which torch does not count as a change
    "data": scale_data,
    "load": load(False),
    "assign": load(True),
    "double": lambda model: model.double(),
    "half": lambda model: model.bfloat16(),
    "rounded": there_and_back,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("tied", [True, False])
def test_what_changes_the_encoder_changes_the_embeddings(change, tied):
    model, vocabulary = make_dynamic_model(tie_phrase_embeddings=tied), make_vocabulary()
    with torch.no_grad():
        before = model.phrase_table(vocabulary).inputs.clone()
        CHANGES[change](model)
        after = model.phrase_table(vocabulary)
        expected = fresh(model, vocabulary)
    assert after.inputs.dtype == expected.inputs.dtype
    assert torch.equal(after.inputs, expected.inputs)
    assert torch.equal(after.outputs, expected.outputs)
    assert not torch.equal(after.inputs.float(), before)


def test_another_adapter_has_other_embeddings():
    model, vocabulary = add_lora(make_dynamic_model(), 2).eval(), make_vocabulary()
    core = model.get_base_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "phrase_encoder.modules_to_save" in name:
                parameter.mul_(1.5)
        trained = core.phrase_table(vocabulary).inputs.clone()
        with model.disable_adapter():
            original = core.phrase_table(vocabulary).inputs.clone()
            assert_same(core.phrase_table(vocabulary), make_dynamic_model().phrase_table(vocabulary))
        assert torch.equal(core.phrase_table(vocabulary).inputs, trained)
    assert not torch.allclose(trained, original)


def two_adapters():
    """Return a model with two adapters inside its phrase encoder, which is not saved as a whole."""
    model = make_dynamic_model()
    settings = {"target_modules": r".*phrase_encoder.*\.(c_attn|q_proj)", "r": 2, "init_lora_weights": False}
    tuned = get_peft_model(model, LoraConfig(**settings), adapter_name="a").eval()
    tuned.add_adapter("b", LoraConfig(**settings))
    return tuned.eval()


def test_adapters_inside_the_encoder_have_embeddings_of_their_own():
    tuned, vocabulary = two_adapters(), make_vocabulary()
    core, found, prints = tuned.get_base_model(), [], []

    def record():
        with torch.no_grad():
            found.append(core.phrase_table(vocabulary))
            assert_same(found[-1], fresh(core, vocabulary))
        prints.append(encoder_hash(core.phrase_encoder))

    for name in ("a", "b"):
        tuned.set_adapter(name)
        record()
    with tuned.disable_adapter():
        record()
    record()
    for layer in core.phrase_encoder.modules():
        if hasattr(layer, "set_scale"):
            layer.set_scale("b", 3.0)
    record()
    assert len(set(prints)) == 4 and prints[1] == prints[3]
    for one, other in ((0, 1), (1, 2), (2, 3), (3, 4)):
        assert not torch.allclose(found[one].inputs, found[other].inputs)


def test_autocast_embeddings_are_not_taken_for_others():
    model, vocabulary = make_dynamic_model(), make_vocabulary()
    types = []
    with torch.no_grad():
        for enabled in (False, True, False):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
                types.append(model.phrase_table(vocabulary).inputs.dtype)
    assert types == [torch.float32, torch.bfloat16, torch.float32]


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
    model = make_dynamic_model()
    model._embeddings = PhraseEmbeddingCache(max_phrases=6)
    first, second = make_vocabulary(*PHRASES[:4]), make_vocabulary(*MORE[:3])
    with torch.no_grad():
        for vocabulary in (first, first, second, second, first, make_vocabulary(*MORE)):
            assert_same(model.phrase_table(vocabulary), fresh_uncounted(model, vocabulary, encoded))
    assert encoded == [4, 3, 4, len(MORE)]


def fresh_uncounted(model, vocabulary, counts):
    table = fresh(model, vocabulary)
    counts.pop()
    return table


def test_a_phrase_longer_than_the_encoder_reads_is_refused():
    model, vocabulary = make_dynamic_model("gpt2"), make_vocabulary((1, 2), (3,) * 65, (4,) * 64)
    with pytest.raises(ValueError, match="got 65 in phrase 51"):
        model.phrase_table(vocabulary)
    vocabulary.remove([51])
    assert model.phrase_table(vocabulary).exists.tolist() == [[True, False, True]]


def test_the_table_of_an_unchanged_vocabulary_is_not_made_again(monkeypatch):
    model, vocabulary = make_dynamic_model(), make_vocabulary(*PHRASES)
    made, make = [], embedding_cache._make_table
    monkeypatch.setattr(embedding_cache, "_make_table", lambda *args: made.append(1) or make(*args))
    with torch.no_grad():
        first, again = model.phrase_table(vocabulary), model.phrase_table([vocabulary])
        assert len(made) == 1
        assert again.vocabularies == (vocabulary,)
        assert all(getattr(first, name) is getattr(again, name) for name in ("inputs", "outputs", "slots", "exists"))
        assert again.output_rows is first.output_rows
        vocabulary.remove([50])
        vocabulary.add_token_ids([(1, 1)])
        assert_same(model.phrase_table(vocabulary), fresh(model, vocabulary))
        assert model.phrase_table(vocabulary).exists.tolist() == [[False, True, True, True, True]]
        assert model.phrase_table(vocabulary, [2]).exists.tolist() == [[False, True, False, False, False]]
        scale_data(model)
        assert_same(model.phrase_table(vocabulary), fresh(model, vocabulary))


def test_tables_are_kept_within_the_bound_and_leave_with_their_vocabulary():
    model = make_dynamic_model()
    model._embeddings = cache = PhraseEmbeddingCache(max_phrases=8)
    vocabularies = [make_vocabulary(*PHRASES), make_vocabulary(*PHRASES[:3]), make_vocabulary(*PHRASES[1:])]
    with torch.no_grad():
        for vocabulary in vocabularies:
            model.phrase_table(vocabulary)
    assert list(cache._tables) == vocabularies[1:]
    del vocabulary, vocabularies
    assert len(cache._tables) == 0


def test_threads_get_what_each_would_alone():
    model = make_dynamic_model()
    vocabularies = [make_vocabulary(*MORE[start : start + 7]) for start in range(0, 28, 4)]
    with torch.no_grad():
        alone = [fresh(model, vocabulary) for vocabulary in vocabularies]

    def table(number):
        with torch.no_grad():
            return model.phrase_table(vocabularies[number])

    with ThreadPoolExecutor(4) as threads:
        numbers = list(range(len(vocabularies))) * 3
        for number, together in zip(numbers, threads.map(table, numbers), strict=True):
            assert_same(together, alone[number])


def test_copies_and_pickles_of_a_model_begin_with_nothing_kept():
    model, vocabulary = make_dynamic_model(), make_vocabulary()
    with torch.no_grad():
        model.phrase_table(vocabulary)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert other._embeddings is not model._embeddings
            assert_same(other.phrase_table(vocabulary), model.phrase_table(vocabulary))
