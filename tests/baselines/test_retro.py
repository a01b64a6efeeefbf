"""RETRO: the base without neighbours, brute force with them, nothing that leaks, generation, files and training."""

import copy

import pytest
import torch
from datasets import Dataset
from transformers import DynamicCache, Trainer, TrainingArguments

from hf_targets import ChunkNeighbors, DocumentRetriever, RetroForCausalLM, word_level_tokenizer
from hf_targets.baselines import retro_neighbors
from tests.memory import realigned
from tests.tiny_backbones import left_padded, make_backbone, token_ids
from tests.trainer_runs import CHECKPOINTING, assert_same, weights

SIZES = {"chunk_length": 4, "neighbor_length": 6, "layers": [1, 2]}
NEW = {"max_new_tokens": 10, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


def make_retro(family="llama", *, trained=True, **fields):
    torch.manual_seed(1)
    model = RetroForCausalLM.from_base(make_backbone(family), **SIZES, **fields)
    for cross in model.retro.cross if trained else ():
        torch.nn.init.normal_(cross.output.weight, std=0.3)
    return model


def neighbors(num_rows=2, num_chunks=3):
    """Return neighbours of chunks, some shorter than others, and none of the last row's first chunk."""
    ids, mask = token_ids(num_rows, num_chunks, 2, 5, seed=4), torch.ones(num_rows, num_chunks, 2, 5).long()
    mask[:, :, 1, 3:], mask[-1, 0] = 0, 0
    return {"neighbor_ids": ids, "neighbor_mask": mask}


def retrieve(chunks):
    return [[[(sum(chunk) * 7 + at) % 49 + 1 for at in range(5)], chunk[:2]][: chunk[0] % 3] for chunk in chunks]


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "opt"])
def test_without_neighbours_and_untrained_it_is_the_base_bit_for_bit(family):
    ids, model = token_ids(2, 14), make_retro(family, trained=False)
    expected = make_backbone(family)(ids, labels=ids)
    for given in ({}, neighbors()):
        output = model(ids, labels=ids, **given)
        assert torch.equal(output.logits, expected.logits) and torch.equal(output.loss, expected.loss)
    written = make_backbone(family).generate(ids, **NEW)
    assert torch.equal(model.generate(ids, retrieve=retrieve, **NEW), written)
    assert model._supports_logits_to_keep() is model.backbone._supports_logits_to_keep()
    other = make_retro(family)
    assert torch.equal(other(ids).logits, expected.logits) and torch.equal(other.generate(ids, **NEW), written)
    assert not torch.equal(other(ids, **neighbors()).logits, expected.logits)


def by_hand(model, number, hidden, start, given, conditions):
    """Return one row's states (time, d) after a chosen layer, position by position, head by head."""
    cross, size, result = model.retro.cross[number], model.config.chunk_length, hidden.clone()
    for at in range(start, len(hidden)):
        chunk, offset = divmod(at - start + 1, size)
        tokens = []
        for ids, mask in zip(given["neighbor_ids"][chunk - 1], given["neighbor_mask"][chunk - 1], strict=True):
            if chunk and mask.any():
                states = conditions[start + (chunk - 1) * size : start + chunk * size]
                embeds = model.get_input_embeddings()(ids[mask.bool()])
                everything = torch.ones(1, len(embeds)).bool()
                tokens.append(model.retro.encoder(embeds[None], everything, states[None])[0])
        if not tokens:
            continue
        query = cross.query(cross.norm(hidden[at]) + cross.offsets.weight[offset])
        read, mixed = torch.cat(tokens), []
        for one in torch.arange(len(query)).chunk(cross.num_heads):
            scores = cross.key(read)[:, one] @ query[one] / len(one) ** 0.5
            mixed.append(scores.softmax(dim=0) @ cross.value(read)[:, one])
        result[at] += cross.output(torch.cat(mixed))
    return result


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_states_are_those_of_brute_force_in_float64_with_padding_on_either_side(family, monkeypatch):
    model, ids, mask, seen = make_retro(family).double(), token_ids(3, 15), torch.ones(3, 15).long(), []
    mask[1, :3], mask[2, 12:] = 0, 0
    forward, given = model.retro.forward, neighbors(3)
    monkeypatch.setattr(model.retro, "forward", lambda *args: seen.append((*args[:2], forward(*args))) or seen[-1][2])
    model(ids, attention_mask=mask, **given)
    assert [number for number, *_ in seen] == [0, 1]
    for number, before, after in seen:
        for row, start in enumerate((0, 3, 0)):
            own = {name: tensor[row] for name, tensor in given.items()}
            expected = by_hand(model, number, before[row], start, own, seen[0][1][row])
            torch.testing.assert_close(after[row][mask[row].bool()], expected[mask[row].bool()])


def test_no_logits_depend_on_later_tokens_or_on_neighbours_of_chunks_that_are_not_read_yet():
    model, size = make_retro().double(), SIZES["chunk_length"]
    embeds, mask = torch.randn(1, 14, 32).double().requires_grad_(), neighbors(1)["neighbor_mask"] | 1
    table = torch.randn(1, 3, 2, 5, 32).double().requires_grad_()
    own = model.backbone.get_input_embeddings()
    own.register_forward_hook(lambda *_: table.flatten(0, 2))
    logits = model(inputs_embeds=embeds, neighbor_ids=mask, neighbor_mask=mask).logits
    for at in range(14):
        of_text, of_neighbors = torch.autograd.grad(logits[0, at].square().sum(), (embeds, table), retain_graph=True)
        assert (of_text[0].abs().sum(dim=1) > 0).tolist() == [other <= at for other in range(14)]
        ends = [(chunk + 1) * size - 1 for chunk in range(3)]
        assert (of_neighbors[0].abs().sum(dim=(1, 2, 3)) > 0).tolist() == [end <= at for end in ends]
    encoded = model.retro.encoder(table[0, 0], mask[0, 0].bool(), embeds[:, :4].expand(2, 4, 32))[0, 2].square().sum()
    of_text, of_neighbors = torch.autograd.grad(encoded, (embeds, table))  # from both sides, with the chunk
    assert of_text[0, :4].any(dim=1).all() and of_neighbors[0, 0, 0].any(dim=1).all()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_batch_with_a_cache_writes_what_each_row_does_alone_without_one(family):
    (ids, mask), model = left_padded(2, 9), make_retro(family)
    scores = {"output_scores": True, "return_dict_in_generate": True}
    batch = model.generate(ids, attention_mask=mask, retrieve=retrieve, **NEW, **scores)
    assert not torch.equal(batch.sequences, model.generate(ids, attention_mask=mask, **NEW))
    for row in range(2):
        alone = ids[row : row + 1, mask[row].bool()]
        again = model.generate(alone, retrieve=retrieve, use_cache=False, **NEW, **scores)
        assert torch.equal(again.sequences[0, alone.shape[1] :], batch.sequences[row, 9:])
        for one, other in zip(again.scores, batch.scores, strict=True):
            torch.testing.assert_close(one[0], other[row])
        assert torch.equal(model.generate(alone, retrieve=retrieve, prompt_lookup_num_tokens=3, **NEW), again.sequences)
    for way in ({"num_beams": 3}, {"do_sample": True, "num_return_sequences": 2}):
        pair = []
        for cached in (True, False):
            torch.manual_seed(0)
            given = {**NEW, **way, "use_cache": cached, "attention_mask": mask}
            pair.append(model.generate(ids, retrieve=retrieve, **given))
        assert torch.equal(*pair)


def test_a_cache_is_gone_on_with_and_one_without_neighbours_is_refused():
    model, ids, given = make_retro(), token_ids(2, 14), neighbors()
    whole = model(ids, **given).logits
    first = model(ids[:, :6], **given, past_key_values=DynamicCache())
    rest = model(ids[:, 6:], past_key_values=first.past_key_values, **given)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], dim=1), whole)
    plain = model(ids[:, :6], use_cache=True)
    with pytest.raises(ValueError, match="cache"):
        model(ids[:, 6:], past_key_values=plain.past_key_values, **given)


@pytest.mark.parametrize("retro_only", [False, True])
def test_it_comes_back_whole_or_as_its_new_layers_on_their_base_and_on_no_other(retro_only, tmp_path):
    make_backbone("llama").save_pretrained(tmp_path / "base")
    model = RetroForCausalLM.from_base(tmp_path / "base", **SIZES, freeze_base=not retro_only)
    ids, given = token_ids(2, 14), neighbors()
    torch.nn.init.normal_(model.retro.cross[0].output.weight)
    model.save_pretrained(tmp_path / "retro", retro_only=retro_only)
    again = realigned(RetroForCausalLM.from_pretrained(tmp_path / "retro"))
    assert_same(weights(again), weights(model), rtol=0, atol=0)
    assert torch.equal(again(ids, **given).logits, realigned(model).eval()(ids, **given).logits)
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in model.parameters()]
    assert again.config.layers == [1, 2] and not again.config.retro_only
    next(model.backbone.parameters()).data += 1.0
    if retro_only:
        with pytest.raises(ValueError, match="whole"):
            model.save_pretrained(tmp_path / "other", retro_only=True)
        model.backbone.save_pretrained(tmp_path / "base")
        with pytest.raises(ValueError, match="base"):
            RetroForCausalLM.from_pretrained(tmp_path / "retro")


@pytest.mark.parametrize(("freeze_base", "smoothing"), [(True, 0.0), (False, 0.0), (True, 0.1)])
def test_a_plain_trainer_trains_the_new_layers_and_the_base_only_if_asked(freeze_base, smoothing, tmp_path):
    model = make_retro("gpt2", freeze_base=freeze_base)
    before, copied = weights(model), copy.deepcopy(model)
    batch = {"input_ids": token_ids(4, 13), "labels": token_ids(4, 13), **neighbors(4)}
    rows = [{name: tensor[row] for name, tensor in batch.items()} for row in range(4)]
    options = {CHECKPOINTING: True, "report_to": [], "use_cpu": True, "save_strategy": "no"}
    options["label_smoothing_factor"] = smoothing
    arguments = TrainingArguments(str(tmp_path), max_steps=1, learning_rate=0.1, **options)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    changed = {name for name, value in weights(model).items() if not torch.equal(value, before[name])}
    assert all(any(name.startswith(f"retro.{part}.") for name in changed) for part in ("encoder", "cross"))
    assert all(p.grad is None for p in model.backbone.parameters()) or not freeze_base
    assert any(name.startswith("backbone.") for name in changed) is not freeze_base
    assert trainer.evaluate()["eval_loss"] > 0
    model.train()(token_ids(1, 3), labels=token_ids(1, 3), **neighbors(1)).loss.backward()  # no whole chunk
    assert all(p.grad is not None for p in model.retro.parameters())
    assert_same(weights(copied), before, rtol=0, atol=0)
    assert torch.equal(copied(token_ids(2, 9)).logits, make_backbone("gpt2")(token_ids(2, 9)).logits)


class Shelf(dict):
    """Documents whose order is known."""

    def retrieve(self, queries, k):
        return [[(name, 1.0) for name in list(self)[:k]] for _ in queries]


def test_new_layers_in_float32_learn_by_small_steps_on_a_base_in_bfloat16():
    model = make_retro()
    model.backbone.bfloat16()
    before, ids = weights(model.retro), token_ids(2, 14)
    output = model(ids, labels=ids, **neighbors())
    output.loss.backward()
    torch.optim.AdamW(model.retro.parameters(), lr=1e-4).step()
    assert output.logits.dtype == torch.bfloat16
    assert all((value != before[name]).any() for name, value in weights(model.retro).items())
    assert model.generate(ids, retrieve=retrieve, **NEW).shape == (2, 24)


def test_a_base_on_disk_and_new_layers_in_memory_compute_the_same(tmp_path):
    model, ids, given = make_retro(), token_ids(2, 14), neighbors()
    model.save_pretrained(tmp_path)
    places = {"device_map": {"backbone": "disk", "retro": "cpu"}, "offload_folder": tmp_path / "offloaded"}
    apart = RetroForCausalLM.from_pretrained(tmp_path, **places)
    torch.testing.assert_close(apart(ids, **given).logits, model(ids, **given).logits)


def test_neighbours_are_the_nearest_documents_but_not_those_of_the_text_itself_unless_asked_for():
    text = " ".join(f"a{at}" for at in range(24))
    shelf = Shelf({"whole": text, "short": "a9 a10", "near": "a1 a3 a5 b1 b3", "far": "b2"})
    tokenizer = word_level_tokenizer([*shelf.values()])
    shelf["inside"] = " ".join([*text.split()[11:19], "b2"])
    found = ChunkNeighbors(shelf, tokenizer, k=3, chunk_length=8, length=10)
    ids = tokenizer(text)["input_ids"][:20]
    data = Dataset.from_dict({"input_ids": [[*ids, 0]], "attention_mask": [[1] * 20 + [0]]}).with_format("torch")
    for own_text, names in ((False, ["near", "far"]), (True, ["whole", "short", "near"])):
        (row,) = found.add_to(data, own_text=own_text)
        expected = [tokenizer(shelf[name])["input_ids"][:10] for name in names] + [[]] * (3 - len(names))
        assert row["neighbor_ids"] == [[one + [0] * (10 - len(one)) for one in expected]] * 2
        assert row["neighbor_mask"] == [[[1] * len(one) + [0] * (10 - len(one)) for one in expected]] * 2
    assert [len(one) for one in found([ids[:8]])[0]] == [10, 2, 5]
    with pytest.raises(ValueError, match="chunk"):
        ChunkNeighbors(shelf, tokenizer, chunk_length=64).add_to(data)


def test_the_neighbours_of_many_rows_are_those_of_brute_force_chunk_by_chunk(monkeypatch):
    monkeypatch.setattr(retro_neighbors, "_ROWS_AT_ONCE", 2)
    drawn = torch.randint(9, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    shelf = {str(at): " ".join(f"w{one}" for one in drawn[at : at + at % 7 + 4]) for at in range(0, 380, 5)}
    tokenizer = word_level_tokenizer([*shelf.values()])
    read = {name: tokenizer(text)["input_ids"] for name, text in shelf.items()}
    whole = tokenizer(" ".join(f"w{one}" for one in drawn))["input_ids"]
    rows = [whole[at : at + size] for at, size in ((0, 24), (50, 9), (90, 31), (7, 3))]
    found = ChunkNeighbors(shelf, tokenizer, k=3, chunk_length=8, length=6)
    retrieve, skipped = DocumentRetriever.lexical(shelf).retrieve, 0
    for row, ids in zip(found.add_to(Dataset.from_dict({"input_ids": rows})), rows, strict=True):
        expected = torch.zeros(2, 3, 3, 6, dtype=torch.long)
        for chunk in range(len(ids) // 8):
            query, others = tokenizer.decode(ids[chunk * 8 : chunk * 8 + 8]), []
            for name, _ in retrieve([query], 3 + 4 + len(ids) // 16)[0]:
                size = min(8, len(read[name]))
                runs = [read[name][at : at + size] for at in range(len(read[name]) - size + 1)]
                is_own = any(ids[at : at + size] in runs for at in range(len(ids)))
                skipped += is_own
                others += [] if is_own else [read[name]]
            for place, other in enumerate(others[:3]):
                expected[0, chunk, place, : len(other)] = torch.tensor(other[:6])
                expected[1, chunk, place, : len(other)] = 1
        assert row["neighbor_ids"] == expected[0].tolist() and row["neighbor_mask"] == expected[1].tolist()
    assert skipped > 4


def test_what_it_cannot_read_is_refused_in_words():
    model, ids, given = make_retro(), token_ids(2, 9), neighbors()
    some = given["neighbor_ids"]
    for wrong in (some[:1], some[0], some + 50, token_ids(2, 1, 1, 7)):
        with pytest.raises(ValueError, match="neighbor_ids"):
            model(ids, neighbor_ids=wrong)
    for family, fields in (("reformer", {}), ("llama", {"layers": [3]})):
        with pytest.raises(ValueError, match="layers"):
            RetroForCausalLM.from_base(make_backbone(family), **fields)
    with pytest.raises(ValueError, match="neighbor_ids"):
        make_retro().train()(ids, labels=ids)
    of_first = {name: part[:, :1] for name, part in given.items()}
    with pytest.raises(ValueError, match="the text has 2 whole chunks of chunk_length=4 tokens"):
        make_retro().train()(ids, labels=ids, **of_first)
    make_retro().train()(ids, (torch.arange(9) < 7).expand(2, -1).long(), labels=ids, **of_first)  # a chunk and padding
    with pytest.raises(ValueError, match="DynamicCache"):
        model.generate(ids, retrieve=retrieve, cache_implementation="static", **NEW)
