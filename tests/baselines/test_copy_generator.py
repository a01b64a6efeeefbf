"""A model that copies from documents: against brute force, with a cache and batches, and what it tells of sources."""

import copy
import pickle
from functools import cache

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

from hf_targets import CopyCollator, CopyGenerator
from hf_targets.baselines.copy_documents import encode_documents, join_pieces
from hf_targets.data.tokenization import train_masking_tokenizer
from tests.choices import on_clear_draws, require_clear_choices, restart_draws
from tests.small_tokenizers import BPE, SENTENCES, WORDS
from tests.tiny_backbones import make_backbone
from tests.trainer_runs import assert_same

READER = train_masking_tokenizer(SENTENCES, vocab_size=290, model_max_length=12)
DOGS = "a dog saw the cat; the dog  sat on a flat mat\n"
DOCUMENTS = {"cats": "the cat sat on the mat, (the flat cat) sat é 🙂", "dogs": DOGS}
OTHERS = {"mice": " a mouse sat on a flat dog", "dogs": DOGS}
TEXTS = ["the dog sat on the mat", "a cat saw the flat dog, (the mat) sat on"]
PROMPTS = BPE(TEXTS, return_tensors="pt", padding=True, padding_side="left")
ROWS = [{"input_ids": BPE(text)["input_ids"]} for text in TEXTS]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
FAMILIES = pytest.mark.parametrize("family", ["gpt2", "llama", "opt", "phi"])  # phi has a bias, opt a narrow output
NEW = {"max_new_tokens": 13, "eos_token_id": None, "pad_token_id": BPE.pad_token_id}
GREEDY, SAMPLED, BEAMS = {"do_sample": False}, {"do_sample": True, "top_k": 20}, {"do_sample": False, "num_beams": 3}


@cache
def make_model(family="llama", *, new=False):
    """Return a float64 model whose windows are about as probable as its tokens, or as `from_base` makes it."""
    reader = BertModel(BertConfig(vocab_size=300, max_position_embeddings=12, **SIZES))
    given = {"tokenizer": BPE, "encoder_tokenizer": READER}
    model = CopyGenerator.from_base(make_backbone(family, vocab_size=300), reader, **given)
    if family == "phi":
        torch.nn.init.normal_(model.get_output_embeddings().bias)
    for layer in () if new else (model.document_encoder.start[-1], model.document_encoder.end[-1]):
        torch.nn.init.normal_(layer.weight, std=0.5)
    return model.double().eval()


def read(model, documents=DOCUMENTS, **settings):
    return model.read_documents(documents, BPE, READER, **settings)


def write(model, ids, documents, **settings):
    restart_draws()
    given = {**NEW, "return_dict_in_generate": True, "phrase_bias": 1.0, **settings}
    output = model.generate(**ids, documents=read(model, documents), **given)
    return output.sequences.tolist(), output.copies


def by_hand(model, documents):
    """Return windows of 2 to 8 tokens and their rows concat(start, end), document by document, without batches."""
    rows = {}
    for text in documents.values():
        (read,) = encode_documents([text], BPE, READER)
        (pieces, (edges,)), tokens = join_pieces([read], READER), read.text
        states = zip(*model.document_encoder(pieces["ids"], pieces["mask"], pieces["places"]), strict=True)
        starts, ends = zip(*states, strict=True)
        for first in range(len(tokens)):
            for stop in range(first + 2, min(first + 8, len(tokens)) + 1):
                start, end = edges[first, 0], edges[stop - 1, 1]
                if min(start, end) >= 0:
                    rows.setdefault(tuple(tokens.ids[first:stop]), torch.cat([starts[start], ends[end]]))
    return rows


@FAMILIES
@torch.no_grad()
def test_without_documents_and_with_new_parts_it_writes_as_its_base(family):
    model, ids = make_model(family, new=True), PROMPTS
    assert torch.equal(model(**ids).logits, model.backbone(**ids).logits)
    assert torch.equal(model.generate(**ids, **NEW, **GREEDY), model.backbone.generate(**ids, **NEW, **GREEDY))
    hidden, weight = model.base_model(**ids)[0], model.get_output_embeddings().weight
    logits = model(**ids, phrases=read(model)).logits[..., 300:]
    torch.testing.assert_close(logits, (hidden @ weight.T).mean(dim=-1, keepdim=True).expand_as(logits))


@FAMILIES
@torch.no_grad()
def test_logits_of_windows_are_those_of_their_states_and_read_no_later_token(family):
    model, ids, rows = make_model(family), PROMPTS, [DOCUMENTS, OTHERS]
    table, hidden = read(model, rows), model.base_model(**ids)[0]
    logits = model(**ids, phrases=table).logits[..., 300:]
    for row, documents in enumerate(rows):
        windows, vocabulary = by_hand(model, documents), table.vocabularies[row]
        assert [vocabulary.token_ids(id_) for id_ in vocabulary] == list(windows)
        torch.testing.assert_close(logits[row, :, : len(windows)], hidden[row] @ torch.stack([*windows.values()]).T)
        assert logits[row, :, len(windows) :].isneginf().all()
    for place in (-1, -3):
        changed = ids["input_ids"].clone()
        changed[:, place:] += 1
        again = model(changed, ids["attention_mask"], phrases=table).logits[..., 300:]
        torch.testing.assert_close(again[:, :place], logits[:, :place])


@FAMILIES
def test_the_loss_is_that_of_tokens_starts_and_ends_by_brute_force(family):
    model, batch = make_model(family), CopyCollator(DOCUMENTS | OTHERS, BPE, READER)(ROWS)
    output, of, labels = model(**batch), batch["sources"], batch["labels"]
    head, hidden = model.get_output_embeddings(), model.base_model(batch["input_ids"])[0]
    starts, ends = model.document_encoder(of["ids"], of["mask"], of["places"])
    half, bias, owners = hidden.shape[-1] // 2, 0 if head.bias is None else head.bias / 2, of["owners"]
    expected, phrases = dict.fromkeys(("token", "start", "end"), 0.0), 0
    for row, at in (labels[:, 1:] != -100).nonzero().tolist():
        state, token = hidden[row, at], labels[row, at + 1]
        expected["token"] += cross_entropy(head(state), token)
        for name, side, states in (("start", slice(half), starts), ("end", slice(half, None), ends)):
            number, tokens = of[f"{name}s"][row, at + 1], head.weight[:, side] @ state[side] + bias
            own = states if number < 0 else states[owners == owners[number]]
            target = token if number < 0 else 300 + number - (owners < owners[number]).sum()
            expected[name] += cross_entropy(torch.cat([tokens, own @ state[side]]), target)
            phrases += number >= 0
    assert phrases > 4 and len(owners.unique()) > 1
    for name, part in output.loss_parts.items():
        torch.testing.assert_close(part * (labels[:, 1:] != -100).sum(), expected[name].detach())
    torch.testing.assert_close(output.loss.detach(), sum(output.loss_parts.values()))


def test_targets_are_phrases_of_other_documents_whose_states_read_no_part_of_the_text():
    text = "the flat cat sat on the mat and a dog saw the flat dog"
    documents = {"own": f"Before: {text}, and after.", **DOCUMENTS}
    batch = CopyCollator(documents, BPE, READER)([{"input_ids": (ids := BPE(text)["input_ids"])}])
    of, found = batch["sources"], []
    assert "after" not in READER.decode(of["ids"].flatten(), skip_special_tokens=True)
    for at in (of["starts"][0] >= 0).nonzero().flatten().tolist():
        places = of["places"][of["starts"][0, at] : of["ends"][0, at] + 1]
        found.append(READER.decode(of["ids"].flatten()[places]).strip())
        assert at > 0 and BPE.decode(ids[at:]).strip().startswith(found[-1])
    assert "dog saw the" in found
    labels = [-100 if BPE.decode(id_) == " saw" else id_ for id_ in ids]
    of = CopyCollator(documents, BPE, READER)([{"input_ids": ids, "labels": labels}])["sources"]
    assert (of["starts"] >= 0).sum() == (of["ends"] >= 0).sum() == len(found) - 1  # no part of it is a target


def test_a_row_without_words_has_no_phrase_and_leaves_the_others_theirs():
    collator, blank = CopyCollator(DOCUMENTS | OTHERS, BPE, READER), {"input_ids": BPE(" \n")["input_ids"]}
    starts = collator([ROWS[0], blank])["sources"]["starts"]
    assert torch.equal(starts[0] >= 0, collator(ROWS[:1])["sources"]["starts"][0] >= 0) and (starts[1] < 0).all()


def test_a_copy_of_a_collator_in_another_process_makes_the_same_batches_after_others():
    collator = CopyCollator(DOCUMENTS | OTHERS, BPE, READER)
    sent = pickle.loads(pickle.dumps(collator))
    collator(ROWS[:1])
    for rows in (ROWS, ROWS[1:]):
        one, other = ({**batch.pop("sources"), **batch} for batch in (collator(rows), sent(rows)))
        assert_same(one, other, rtol=0, atol=0)
        assert (one["starts"] >= 0).any()


def test_the_plain_trainer_trains_each_part(tmp_path):
    model, rows = copy.deepcopy(make_model()).float().train(), ROWS * 4
    before = {name: value.clone() for name, value in model.named_parameters()}
    given = {"max_steps": 12, "learning_rate": 3e-3, "per_device_train_batch_size": 2, "use_cpu": True}
    arguments, collator = TrainingArguments(tmp_path, report_to=[], **given), CopyCollator(DOCUMENTS, BPE, READER)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, data_collator=collator)
    first = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < first - 0.5
    assert [name for name, value in model.named_parameters() if torch.equal(value, before[name])] == []


@FAMILIES
@pytest.mark.parametrize("how", [GREEDY, SAMPLED, BEAMS], ids=["greedy", "sampled", "beams"])
@on_clear_draws
def test_a_cache_changes_no_text_and_other_rows_no_greedy_one(family, how, monkeypatch):
    require_clear_choices(monkeypatch)
    model, ids, documents = make_model(family), PROMPTS, [DOCUMENTS, OTHERS]
    texts, copies = write(model, ids, documents, **how)
    assert (texts, copies) == write(model, ids, documents, use_cache=False, **how)
    assert all(copies)
    for row, one in enumerate(documents) if how is GREEDY else ():
        alone, of_alone = write(model, BPE(TEXTS[row], return_tensors="pt"), one, **how)
        assert alone[0] == texts[row][-len(alone[0]) :] and of_alone[0] == copies[row]


@pytest.mark.parametrize("how", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_text_has_as_many_tokens_as_asked_for_and_its_copies_stand_in_the_documents_that_they_name(how):
    model, ids = make_model(), PROMPTS
    texts, copies = write(model, ids, DOCUMENTS, **how)
    assert {len(text) for text in texts} == {ids["input_ids"].shape[1] + 13}
    for row, spans in zip(texts, copies, strict=True):
        text = BPE.decode(row, skip_special_tokens=True)
        for span in spans:
            assert text[span.start : span.end] == span.text and span.sources
            for document, start, end in span.sources:
                assert DOCUMENTS[document][start:end] == span.text.strip()
    assert all(copies)


def test_a_saved_model_is_the_same(tmp_path):
    model, ids = make_model(), PROMPTS
    model.save_pretrained(tmp_path)
    again = CopyGenerator.from_pretrained(tmp_path, dtype=torch.float64)
    torch.testing.assert_close(again(**ids, phrases=read(again)).logits, model(**ids, phrases=read(model)).logits)
    assert again.config.tokenizers == model.config.tokenizers


def test_what_cannot_be_is_refused():
    model, ids = make_model(), PROMPTS
    batch = CopyCollator(DOCUMENTS | OTHERS, BPE, READER)(ROWS)
    batch["sources"]["starts"][0, 1] = 10**6
    for word, call in {
        "tokenizers": lambda: model.read_documents(DOCUMENTS, WORDS, READER),
        "from_base": lambda: model.read_documents(DOCUMENTS, BPE, WORDS),
        "two tokens": lambda: read(model, {"a": "a"}),
        "by id": lambda: read(model, ["a text"]),
        "min_tokens": lambda: read(model, max_tokens=1),
        "max_tokens must": lambda: CopyCollator(DOCUMENTS, BPE, READER, max_tokens=1),
        "read_documents": lambda: model.generate(**ids, documents=DOCUMENTS),
        "each row": lambda: model.generate(**ids, documents=read(model, [DOCUMENTS] * 3)),
        "cache": lambda: model.generate(**ids, documents=read(model), cache_implementation="static"),
        "starts": lambda: model(**batch),
    }.items():
        with pytest.raises(ValueError, match=word):
            call()
