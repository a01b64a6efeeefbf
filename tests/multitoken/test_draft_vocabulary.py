"""A draft vocabulary limits what is drafted, and never what is written."""

import copy
import pickle

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_targets import MultiTokenForCausalLM
from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.multitoken.draft_vocabulary import DraftVocabulary
from hf_targets.multitoken.drafting.drafts import draft_chain_as_text, draft_tree
from tests.tiny_models import TARGETS, VOCAB, left_padded, make_backbone, make_drafting_model, token_ids

IDS = torch.tensor([1, 4, 9, 16, 25, 30, 36, 41])
GREEDY = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}


def limited(model):
    """Return a copy of the model with heads that draft `IDS` alone."""
    model = copy.deepcopy(model)
    model.config.draft_vocab_size = len(IDS)
    model.heads.draft_vocabulary = DraftVocabulary(len(IDS), VOCAB)
    model.heads.draft_vocabulary.ids.copy_(IDS)
    return model


@pytest.mark.parametrize("num_branches", [1, 3])
@pytest.mark.usefixtures("clear_choices")
def test_greedy_texts_are_those_without_it(num_branches):
    model, (ids, mask) = limited(make_drafting_model("gpt2")), left_padded()
    plain = model.generate(ids, attention_mask=mask, **GREEDY)
    options = {"draft_tokens": 3, "draft_branches": num_branches, "return_dict_in_generate": True}
    output = model.generate(ids, attention_mask=mask, **options, **GREEDY)
    assert torch.equal(output.sequences, plain)
    assert output.num_drafted_tokens


@pytest.mark.parametrize("target", TARGETS)
def test_the_logits_of_drafted_tokens_are_those_of_all_tokens_and_no_other_is_drafted(target):
    model = limited(make_drafting_model("llama", target)).double()
    hidden, tokens = torch.randn(3, model.config.get_text_config().hidden_size).double(), token_ids(3, 1)
    states = model.future_states(hidden, 1)
    got = model.whole_logits(model.future_logits(states[:, 0], tokens))
    model.heads.draft_vocabulary = None
    expected = model.future_logits(states[:, 0], tokens)
    torch.testing.assert_close(got[:, IDS], expected[:, IDS])
    others = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, IDS, False)
    assert (got.softmax(dim=-1)[:, others] == 0).all()


@pytest.mark.parametrize("target", TARGETS)
def test_the_tokens_of_chains_and_trees_are_those_that_logits_of_all_tokens_would_give(target):
    model = limited(make_drafting_model("llama", target)).double()
    hidden, tokens = torch.randn(5, model.config.get_text_config().hidden_size).double(), token_ids(5, 1)[:, 0]
    known = model, hidden, tokens, 3, lambda drafted, logits: logits
    few, all_tokens = (
        draft_chain_as_text(*known, sample=False, processed=processed).tokens for processed in (False, True)
    )
    assert torch.equal(few, all_tokens)
    assert torch.isin(few, IDS).all()
    tree = draft_tree(model, hidden, tokens, 3, 2)
    assert torch.isin(tree.tokens, IDS).all()
    assert torch.equal(tree.tokens[:, 0], few[:, 0])  # the most probable first token


def test_rows_are_read_again_when_the_matrix_has_changed():
    output, vocabulary = torch.nn.Linear(4, VOCAB), DraftVocabulary(8, VOCAB)
    states = torch.randn(2, 3, 4)
    with torch.no_grad():
        for change in (
            lambda: None,
            lambda: output.weight.mul_(2),
            lambda: output.double(),
            lambda: vocabulary.choose([[40]]),
        ):
            change()
            states = states.to(output.weight.dtype)
            got = vocabulary.logits(OutputMap(output), states)
            torch.testing.assert_close(got, output(states)[..., vocabulary.ids])
    assert copy.deepcopy(vocabulary)._rows is pickle.loads(pickle.dumps(vocabulary))._rows is None


def test_the_most_frequent_tokens_are_chosen_and_the_lowest_fill_the_rest():
    vocabulary = DraftVocabulary(4, VOCAB)
    assert vocabulary.ids.tolist() == [0, 1, 2, 3]
    vocabulary.choose([[7, 7, 9, 30], [9, 7, 30, 30, 5, 5, 2]])
    assert vocabulary.ids.tolist() == [5, 7, 9, 30]
    vocabulary.choose([[0, 33]])
    assert vocabulary.ids.tolist() == [0, 1, 2, 33]


@pytest.mark.parametrize("heads_only", [False, True])
def test_a_saved_model_drafts_the_same_tokens(heads_only, tmp_path):
    make_backbone("gpt2").save_pretrained(tmp_path / "base")
    model = MultiTokenForCausalLM.from_base(str(tmp_path / "base"), draft_vocab_size=8)
    model.heads.draft_vocabulary.choose([IDS.tolist()])
    model.save_pretrained(tmp_path / "mine", heads_only=heads_only)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "mine")
    assert loaded.config.draft_vocab_size == 8
    assert torch.equal(loaded.heads.draft_vocabulary.ids, IDS)


def test_wrong_sizes_are_told():
    with pytest.raises(ValueError, match="got 1000"):
        MultiTokenForCausalLM.from_base(make_backbone("gpt2"), draft_vocab_size=1000)
    model = limited(make_drafting_model("gpt2"))
    with pytest.raises(ValueError, match="draft tokens up to 41"):
        model.resize_token_embeddings(41)
    model.resize_token_embeddings(42)


@pytest.mark.parametrize("target", TARGETS)
def test_heads_are_trained_on_it_alone_and_the_next_token_on_all_tokens(target):
    model, ids = limited(make_drafting_model("llama", target)).double().train(), token_ids(2, 9)
    ids[:, 5] = IDS[2]
    output = model(input_ids=ids, labels=ids, output_last_hidden_state=True)
    hidden, matrix = output.last_hidden_state, model.get_output_embeddings().weight
    predicted = model.heads(hidden, torch.nn.functional.embedding(ids[:, 1:], matrix))
    for n, embeddings in enumerate(predicted, start=1):
        logits, wanted = (embeddings @ matrix[IDS].T)[:, :-1].flatten(0, 1), ids[:, n + 1 :].flatten()
        losses = [row.logsumexp(dim=0) - row[token == IDS] for row, token in zip(logits, wanted, strict=True)]
        assert 0 < sum(map(len, losses)) < len(losses)
        torch.testing.assert_close(output.loss_parts[f"head_{n}"], torch.cat(losses).sum() / ids[:, 1:].numel())
    plain = torch.nn.functional.cross_entropy((hidden @ matrix.T)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(output.loss_parts["next_token"], plain)
    stored = model(input_ids=ids, labels=ids, last_hidden_state=hidden)
    assert "next_token" not in stored.loss_parts
    torch.testing.assert_close(stored.loss + plain / 2, output.loss)
