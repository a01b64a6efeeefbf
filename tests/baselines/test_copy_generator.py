"""A model that copies from documents: against brute force, with a cache and batches, and what it tells of sources."""

import copy
from functools import cache

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

from hf_targets import CopyCollator, CopyGenerator
from hf_targets.baselines.copy_documents import read_pieces
from hf_targets.data.tokenization import train_masking_tokenizer
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from tests.choices import on_clear_draws, require_clear_choices, restart_draws
from tests.small_tokenizers import BPE, SENTENCES, WORDS
from tests.tiny_backbones import make_backbone

READER = train_masking_tokenizer(SENTENCES, vocab_size=290, model_max_length=12)
DOCUMENTS = {
    "cats": "the cat sat on the mat, (the flat cat) sat é 🙂",
    "dogs": "a dog saw the cat; the dog  sat on a flat mat\n",
}
OTHERS = {"mice": " a mouse sat on a flat dog", "dogs": DOCUMENTS["dogs"]}
TEXTS = ["the dog sat on the mat", "a cat saw the flat dog, (the mat) sat on"]
FAMILIES = pytest.mark.parametrize("family", ["gpt2", "llama", "opt", "phi"])
NEW = {"max_new_tokens": 13, "eos_token_id": None, "pad_token_id": BPE.pad_token_id}


@cache
def make_model(family="llama", *, new=False):
    """Return a float64 model whose windows are about as probable as its tokens, or as `from_base` makes it."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    base, reader = (
        make_backbone(family, vocab_size=300),
        BertModel(BertConfig(vocab_size=300, **sizes, max_position_embeddings=12)),
    )
    model = CopyGenerator.from_base(base, reader, tokenizer=BPE, encoder_tokenizer=READER, projection_dropout=0.0)
    for layer in () if new else (model.document_encoder.start[-1], model.document_encoder.end[-1]):
        torch.nn.init.normal_(layer.weight, std=0.5)
    return model.double().eval()


def collated(**settings):
    collator = CopyCollator(DOCUMENTS | OTHERS, BPE, READER, **settings)
    return collator([{"input_ids": BPE(text)["input_ids"]} for text in TEXTS])


def read(model, documents=DOCUMENTS, **settings):
    return model.read_documents(documents, BPE, READER, **settings)


def prompts():
    return BPE(TEXTS, return_tensors="pt", padding=True, padding_side="left")


def by_hand(model, documents):
    """Return windows of 2 to 8 tokens and their rows concat(start, end), document by document, without batches."""
    rows = {}
    for text in documents.values():
        tokens = TokenizedText.from_text(text, BPE)
        pieces, (edges,) = read_pieces([tokens], READER)
        starts, ends = model.document_encoder(pieces["ids"], pieces["mask"], pieces["places"])
        for first in range(len(tokens)):
            for stop in range(first + 2, min(first + 8, len(tokens)) + 1):
                if edges[first, 0] < 0 or edges[stop - 1, 1] < 0:
                    continue
                row = torch.cat([starts[edges[first, 0]], ends[edges[stop - 1, 1]]])
                rows.setdefault(tuple(tokens.ids[first:stop]), row)
    return rows


@FAMILIES
def test_without_documents_and_with_new_parts_it_writes_as_its_base(family):
    model, ids = make_model(family, new=True), prompts()
    assert torch.equal(model(**ids).logits, model.backbone(**ids).logits)
    base = model.backbone.generate(**ids, **NEW, do_sample=False)
    assert torch.equal(model.generate(**ids, **NEW, do_sample=False), base)
    logits = model(**ids, phrases=read(model)).logits[..., 300:]
    torch.testing.assert_close(logits.std(dim=-1), torch.zeros_like(logits[..., 0]))  # begin with the mean of tokens
    hidden, weight = model.base_model(**ids)[0], model.get_output_embeddings().weight
    torch.testing.assert_close(logits[..., 0], (hidden @ weight.T).mean(dim=-1))


def test_windows_start_and_end_where_tokens_of_the_encoder_do():
    texts = [TokenizedText.from_text(text, BPE) for text in (*DOCUMENTS.values(), "\n")]
    pieces, edges_of = read_pieces(texts, READER)
    owners = pieces["owners"]
    assert len(pieces["ids"]) > len(texts) and pieces["ids"].shape[1] == 12
    for number, (text, edges) in enumerate(zip(texts, edges_of, strict=True)):
        own = READER(text.text, add_special_tokens=False, return_offsets_mapping=True)
        read = pieces["ids"].flatten()[pieces["places"][owners == number]]
        assert read.tolist() == own["input_ids"]
        places, before = own["offset_mapping"], int((owners < number).sum())
        for (first, last), token in zip(edges[:, :2].tolist(), text.offsets.tolist(), strict=True):
            spans = token, places[max(first - before, 0)]
            assert first < 0 or len({end - len(text.text[start:end].lstrip()) for start, end in spans}) == 1
            assert last < 0 or token[1] == places[last - before][1]
        assert (edges[:, :2] >= 0).sum() > len(read) or number == 2  # a line end is no window


@FAMILIES
@torch.no_grad()
def test_logits_of_windows_are_those_of_their_states_side_by_side(family):
    model, ids = make_model(family), prompts()
    table = read(model, [DOCUMENTS, OTHERS])
    hidden = model.base_model(**ids)[0]
    logits = model(**ids, phrases=table.with_prior(0.5, 0.25)).logits[..., 300:]
    for row, documents in enumerate([DOCUMENTS, OTHERS]):
        rows = by_hand(model, documents)
        vocabulary = table.vocabularies[row]
        assert [vocabulary.token_ids(id_) for id_ in vocabulary] == list(rows)
        expected = hidden[row] @ torch.stack(list(rows.values())).T
        expected = expected + 0.5 + 0.25 * torch.tensor([len(ids) - 1 for ids in rows])
        torch.testing.assert_close(logits[row, :, : len(rows)], expected)
        assert logits[row, :, len(rows) :].isneginf().all()


@FAMILIES
def test_the_loss_is_that_of_tokens_starts_and_ends_by_brute_force(family):
    model, batch = make_model(family), collated()
    output, of, labels = model(**batch), batch["sources"], batch["labels"]
    head, hidden = model.get_output_embeddings(), model.base_model(batch["input_ids"])[0]
    starts, ends = model.document_encoder(of["ids"], of["mask"], of["places"])
    half, bias = hidden.shape[-1] // 2, 0 if head.bias is None else head.bias / 2
    expected = dict.fromkeys(("token", "start", "end"), 0.0)
    for row, at in (labels[:, 1:] != -100).nonzero().tolist():
        state, target = hidden[row, at], labels[row, at + 1]
        expected["token"] += cross_entropy(head(state), target)
        parts = {
            "start": (state[:half], head.weight[:, :half], starts),
            "end": (state[half:], head.weight[:, half:], ends),
        }
        for name, (query, rows, states) in parts.items():
            number, target = of[f"{name}s"][row, at + 1], labels[row, at + 1]
            own = states if number < 0 else states[of["owners"] == of["owners"][number]]
            if number >= 0:
                target = 300 + number - int((of["owners"] < of["owners"][number]).sum())
            expected[name] += cross_entropy(torch.cat([rows @ query + bias, own @ query]), target)
    count = int((labels[:, 1:] != -100).sum())
    for name, part in output.loss_parts.items():
        torch.testing.assert_close(part, (expected[name] / count).detach())
    torch.testing.assert_close(output.loss, sum(expected.values()) / count)


def test_targets_are_the_longest_phrases_of_other_documents_and_their_states_read_no_part_of_the_text():
    text = "the flat cat sat on the mat and a dog saw the flat dog"
    documents = {"own": f"Before: {text}, and after.", "dogs": DOCUMENTS["dogs"], "cats": DOCUMENTS["cats"]}
    batch = CopyCollator(documents, BPE, READER)([{"input_ids": BPE(text)["input_ids"]}])
    of, ids = batch["sources"], batch["input_ids"][0].tolist()
    assert set(READER.decode(of["ids"][:, 1:4].flatten()).split()) & {"Before"} == set()
    found = [at for at, number in enumerate(of["starts"][0].tolist()) if number >= 0]
    assert found and found[0] > 0
    words = []
    for at in found:
        first, last = of["starts"][0, at], of["ends"][0, at]
        words.append(READER.decode(of["ids"].flatten()[of["places"][first : last + 1]]).strip())
        assert BPE.decode(ids[at:]).strip().startswith(words[-1])
    assert "dog saw the" in " ".join(words)
    model = make_model()
    before = model(**batch).loss_parts["start"]
    batch["labels"] = batch["labels"].clone()
    batch["labels"][0, found[0] :] = -100
    model.zero_grad()
    model(**batch).loss.backward()
    assert model.document_encoder.start[-1].weight.grad is not None and before.isfinite()


def test_each_part_is_trained_by_the_plain_trainer_and_padding_changes_nothing(tmp_path):
    model, rows = (
        copy.deepcopy(make_model()).float().train(),
        [{"input_ids": BPE(text)["input_ids"]} for text in TEXTS * 4],
    )
    collator = CopyCollator(DOCUMENTS | OTHERS, BPE, READER)
    before = {name: value.clone() for name, value in model.named_parameters()}
    arguments = TrainingArguments(
        tmp_path, max_steps=12, learning_rate=3e-3, per_device_train_batch_size=2, report_to=[], use_cpu=True
    )
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, data_collator=collator)
    first = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < first - 0.5
    same = [name for name, value in model.named_parameters() if torch.equal(value, before[name])]
    assert all("key.bias" in name or "k_proj.bias" in name for name in same), same


GREEDY, SAMPLED = {"do_sample": False}, {"do_sample": True, "top_k": 20}


def write(model, ids, documents, **settings):
    restart_draws()
    given = {**NEW, "return_dict_in_generate": True, "phrase_bias": 1.0, **settings}
    output = model.generate(**ids, documents=read(model, documents), **given)
    return output.sequences.tolist(), output.copies


@FAMILIES
@pytest.mark.parametrize(
    "how", [GREEDY, SAMPLED, {"num_beams": 3, "do_sample": False}], ids=["greedy", "sampled", "beams"]
)
@on_clear_draws
def test_a_cache_changes_no_text_and_neither_do_other_rows_beside_a_greedy_one(family, how, monkeypatch):
    require_clear_choices(monkeypatch)
    model, ids, documents = make_model(family), prompts(), [DOCUMENTS, OTHERS]
    texts, copies = write(model, ids, documents, **how)
    assert (texts, copies) == write(model, ids, documents, use_cache=False, **how)
    assert all(copies)
    for row, one in enumerate(documents) if how is GREEDY else ():
        alone, of_alone = write(model, BPE(TEXTS[row], return_tensors="pt"), one, **how)
        assert alone[0] == texts[row][-len(alone[0]) :] and of_alone[0] == copies[row]


@pytest.mark.parametrize("how", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_text_has_as_many_tokens_as_asked_for_and_its_copies_stand_in_the_documents_that_they_name(how):
    model, ids = make_model(), prompts()
    texts, copies = write(model, ids, DOCUMENTS, **how)
    assert {len(text) for text in texts} == {ids["input_ids"].shape[1] + 13}
    for row, spans in zip(texts, copies, strict=True):
        text = BPE.decode(row, skip_special_tokens=True)
        assert spans
        for span in spans:
            assert text[span.start : span.end] == span.text and span.sources
            for document, start, end in span.sources:
                assert DOCUMENTS[document][start:end].strip() == span.text.strip()


def test_a_saved_model_is_the_same(tmp_path):
    model, ids = copy.deepcopy(make_model()), prompts()
    model.save_pretrained(tmp_path)
    again = CopyGenerator.from_pretrained(tmp_path, dtype=torch.float64)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    assert {**again.state_dict()}.keys() == {**model.state_dict()}.keys()
    torch.testing.assert_close(again(**ids, phrases=read(again)).logits, model(**ids, phrases=read(model)).logits)
    assert again.config.tokenizers == model.config.tokenizers


def test_what_cannot_be_is_refused():
    model, ids = make_model(), prompts()
    for tokenizers in ((WORDS, READER), (BPE, WORDS)):
        with pytest.raises(ValueError, match="tokenizers of from_base"):
            model.read_documents(DOCUMENTS, *tokenizers)
    for documents, word in (({"a": "a"}, "two tokens"), ({}, "documents"), (["a text"], "documents")):
        with pytest.raises(ValueError, match=word):
            read(model, documents)
    with pytest.raises(ValueError, match="2"):
        read(model, max_tokens=1)
    with pytest.raises(ValueError, match="read_documents"):
        model.generate(**ids, documents=DOCUMENTS)
    with pytest.raises(ValueError, match="batch"):
        model.generate(**ids, documents=read(model, [DOCUMENTS] * 3))
    with pytest.raises(ValueError, match="cache"):
        model.generate(**ids, documents=read(model), cache_implementation="static")
    batch = collated()
    batch["sources"]["starts"][0, 1] = 10**6
    with pytest.raises(ValueError, match="starts"):
        model(**batch)
