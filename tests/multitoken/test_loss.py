import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from hf_targets import MultiTokenForCausalLM
from hf_targets.backbones.output_matrix import OutputMap
from hf_targets.multitoken.future import Known, predict
from tests.multitoken.by_hand import equations
from tests.tiny_models import TARGETS, make_backbone, make_model, token_ids


def predicted_embeddings(model, hidden, ids):
    """Return what each head predicts from the first of these hidden states on."""
    known = Known(hidden, ids, torch.arange(ids.shape[1]).expand_as(ids))
    return predict(model.heads, OutputMap.of(model.backbone), known, None).embeddings


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=8)
@given(ngram_size=st.integers(2, 5), time=st.integers(1, 9), seed=st.integers(0, 5))
def test_the_loss_its_gradient_and_the_ensemble_are_the_equations(target, ngram_size, time, seed):
    model = make_model("llama", target=target, ngram_size=ngram_size, loss_weight=0.7).double()
    ids = token_ids(2, time, seed=seed)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)) < 0.3, -100)
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)
    hidden = model.backbone.base_model(ids)[0]
    loss, parts, logits = equations(model, hidden, ids, targets, weight=0.4)
    output = model(ids, labels=labels, ensemble_weight=0.4)
    torch.testing.assert_close(torch.stack(list(output.loss_parts.values())), parts.detach(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(output.loss, loss, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(output.logits, logits, rtol=1e-6, atol=1e-6)
    if (targets >= 0).any():
        matrix = model.get_output_embeddings().weight
        gradients = (torch.autograd.grad(one, matrix)[0] for one in (output.loss, loss))
        torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


def test_scores_are_the_likelihoods_of_the_ensemble_logits():
    model, ids = make_model("gpt2"), token_ids(3, 10)
    weights = [0.0, 0.2, 1.0]
    nlls = model(ids, labels=ids, nll_weights=weights).nlls
    assert nlls.shape == (3, 3)
    for column, weight in enumerate(weights):
        logp = model(ids, ensemble_weight=weight).logits.log_softmax(-1)[:, :-1]
        expected = -logp.gather(2, ids[:, 1:, None]).sum((1, 2))
        torch.testing.assert_close(nlls[:, column], expected, rtol=1e-5, atol=1e-5)


def test_a_head_reaches_zero_loss_on_a_periodic_text_only_with_its_own_shift():
    # Embeddings are one-hot, hidden states tell the phase of the period, heads are linear: only the shift is to learn.
    period, ngram_size = 5, 4
    model = make_model("gpt2", ngram_size=ngram_size, loss_weight=1.0)
    ids = torch.arange(40)[None] % period
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(60):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    parts = model(ids, labels=ids).loss_parts
    assert all(part < 0.02 for part in parts.values()), parts
    hidden = model.backbone.base_model(ids)[0]
    future = predicted_embeddings(model, hidden, ids)
    output = model.get_output_embeddings()
    for n, vectors in enumerate(future, start=1):
        said = output(vectors).argmax(-1)[0]
        assert torch.equal(said, (torch.arange(len(said)) + 1 + n) % period)


@pytest.mark.parametrize("target", TARGETS)
def test_gradients_show_no_leak_from_the_future(target):
    model = make_model("gpt2", target=target)
    ids = token_ids(1, 12)
    embedded = []
    hook = model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: embedded.append(output.requires_grad_()) or output
    )
    logits = model(ids, ensemble_weight=0.5).logits
    hook.remove()
    (gradient,) = torch.autograd.grad(logits[0, 6].logsumexp(-1), embedded[0])
    assert gradient[0, 7:].abs().sum() == 0
    assert (gradient[0, :7].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("target", TARGETS)
def test_packed_documents_are_scored_as_if_each_stood_alone(target):
    model = make_model("llama", target=target)
    documents = [token_ids(1, length, seed=length) for length in (5, 9, 2)]
    alone = [model(ids, labels=ids) for ids in documents]
    packed = torch.cat(documents, dim=1)
    positions = torch.cat([torch.arange(ids.shape[1]) for ids in documents])[None]
    together = model(packed, labels=packed, position_ids=positions)
    counts = [ids.shape[1] - 1 for ids in documents]
    for name, part in together.loss_parts.items():
        expected = sum(one.loss_parts[name] * n for one, n in zip(alone, counts, strict=True)) / sum(counts)
        torch.testing.assert_close(part, expected, rtol=1e-4, atol=1e-4)


def test_training_with_labels_never_makes_logits_of_all_words():
    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            result = function(*arguments, **(keywords or {}))
            for tensor in torch.utils._pytree.tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    Watch.largest = max(Watch.largest, tensor.numel())
            return result

    base = make_backbone("gpt2", vocab_size=5000)
    model = MultiTokenForCausalLM.from_base(base, ngram_size=4).train()
    ids = torch.randint(5000, (8, 60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_targets.maths.losses.LOGITS_PER_CHUNK", 5000 * 16)
        with Watch():
            output = model(ids, labels=ids)
            output.loss.backward()
    assert output.logits is None
    assert Watch.largest <= 5000 * 32  # the output matrix itself, far below the 8 * 60 * 5000 of one head's logits


def test_word_differences_need_the_words():
    model = make_model("gpt2", target="difference")
    embeddings = model.get_input_embeddings()(token_ids(1, 6))
    with pytest.raises(ValueError, match="need token ids"):
        model(inputs_embeds=embeddings, ensemble_weight=0.2)
    simple = make_model("gpt2", target="embedding")
    ids = token_ids(1, 6)
    expected = simple(ids, ensemble_weight=0.2).logits
    got = simple(inputs_embeds=simple.get_input_embeddings()(ids), ensemble_weight=0.2).logits
    torch.testing.assert_close(got, expected)
