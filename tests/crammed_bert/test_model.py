"""A CrammedBERT against the published arithmetic, and its habits as a model of Transformers."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

from hf_targets import CrammedBertConfig, CrammedBertForMaskedLM, CrammedBertForSequenceClassification
from tests.crammed_bert.models import SIZES, make_crammed_bert, published_states, published_tensors
from tests.tiny_backbones import token_ids
from tests.tiny_masked import make_masked_model, masked_batch


@settings(max_examples=10)
@given(rows=st.integers(1, 3), time=st.integers(1, 40), seed=st.integers(0, 99))
def test_logits_are_those_of_the_published_arithmetic(rows, time, seed):
    tensors, ids = published_tensors(seed), token_ids(rows, time, seed=seed)
    model = CrammedBertForMaskedLM.from_published(tensors, num_attention_heads=4, dtype=torch.float64)
    states = published_states(tensors, ids)
    expected = states @ tensors["decoder.weight"].double().T
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(model.model(ids).last_hidden_state, states, rtol=1e-10, atol=1e-10)


def test_a_classifier_is_that_of_the_published_arithmetic_where_nothing_is_padded():
    tensors, ids = published_tensors(labels=3), token_ids(2, 9)
    model = CrammedBertForSequenceClassification.from_published(tensors, num_attention_heads=4, dtype=torch.float64)
    weight = {name: tensor.double() for name, tensor in tensors.items()}
    pooled = published_states(tensors, ids).mean(dim=1) @ weight["pooler.dense.weight"].T + weight["pooler.dense.bias"]
    expected = pooled.tanh() @ weight["head.weight"].T + weight["head.bias"]
    torch.testing.assert_close(model(ids).logits, expected, rtol=1e-10, atol=1e-10)


def test_the_default_configuration_has_as_many_parameters_as_the_published_model():
    with torch.device("meta"):
        model = CrammedBertForMaskedLM(CrammedBertConfig())
    layer = 3 * 768**2 + 768**2 + 768 * 3072 + 1536 * 768 + 4 * 768
    assert sum(map(torch.Tensor.numel, model.parameters())) == 32768 * 768 + 16 * layer + 4 * 768 + 1


def test_a_new_model_begins_as_published():
    torch.manual_seed(0)
    model = CrammedBertForMaskedLM(CrammedBertConfig(**{**SIZES, "vocab_size": 500}))
    assert model.model.embed_positions.scale.item() == pytest.approx(32**-0.5)
    assert not model.model.embed_tokens.weight[0].any()
    assert model.model.embed_tokens.weight[1:].std().item() == pytest.approx(0.02, rel=0.05)
    assert model.lm_head.weight is model.model.embed_tokens.weight and model.lm_head.bias is None


def test_the_loss_is_the_cross_entropy_of_the_masked_tokens():
    model, batch = make_crammed_bert(), masked_batch()
    expected = F.cross_entropy(model(batch["input_ids"]).logits.flatten(0, 1), batch["labels"].flatten())
    output = model(**batch)
    torch.testing.assert_close(output.loss, expected)
    smoothed = F.cross_entropy(output.logits.flatten(0, 1), batch["labels"].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(model(**batch, label_smoothing=0.1).loss, smoothed)
    assert model.train()(**batch).logits is None


def test_only_masked_positions_meet_the_output_matrix_in_training():
    model, batch = make_crammed_bert().train(), masked_batch()
    states = []
    model.lm_head.register_forward_pre_hook(lambda _, inputs: states.append(inputs))
    model(**batch).loss.backward()
    assert [inputs[1].shape[0] for inputs in states] == [(batch["labels"] != -100).sum().item()]


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_a_class(pooling, side):
    model, ids = make_crammed_bert(classifier=True, classifier_pooling=pooling, num_labels=3), token_ids(1, 7)
    width = (4, 0) if side == "left" else (0, 4)
    mask = F.pad(torch.ones_like(ids), width)
    padded = model(F.pad(ids, width, value=5), attention_mask=mask).logits
    torch.testing.assert_close(padded, model(ids).logits)


def test_a_classifier_loads_what_a_masked_model_saved(tmp_path):
    masked, ids = make_crammed_bert(), token_ids(2, 6)
    masked.save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert type(model) is CrammedBertForSequenceClassification
    torch.testing.assert_close(model.model(ids)[0], masked.model(ids)[0])
    model.save_pretrained(tmp_path / "fine-tuned")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "fine-tuned")
    assert again.config.num_labels == 3
    torch.testing.assert_close(again.eval()(ids).logits, model.eval()(ids).logits)


def test_the_plain_trainer_fine_tunes_a_classifier(tmp_path):
    model = make_crammed_bert(classifier=True, num_labels=2)
    rows = [{"input_ids": ids.tolist(), "labels": int(ids[0] % 2)} for ids in token_ids(16, 6)]
    args = TrainingArguments(str(tmp_path), max_steps=30, learning_rate=5e-3, report_to="none", use_cpu=True)
    trainer = Trainer(model, args, train_dataset=rows, eval_dataset=rows)  # pyright: ignore
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before / 2


def test_the_whole_classifier_is_trained_and_saved_beside_adapters(tmp_path):
    make_crammed_bert().save_pretrained(tmp_path / "base")
    base = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    model: Any = get_peft_model(base, LoraConfig(task_type="SEQ_CLS", target_modules=["query_key_value"]))
    trained = [name for name, one in model.named_parameters() if one.requires_grad and "lora" not in name]
    assert {name.split(".")[-2] for name in trained} == {"dense", "out_proj"}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * parameter.requires_grad)
    model.save_pretrained(tmp_path / "adapter")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=3)
    loaded = PeftModel.from_pretrained(again, tmp_path / "adapter").eval()
    torch.testing.assert_close(loaded(token_ids(2, 6)).logits, model.eval()(token_ids(2, 6)).logits)


def test_a_classifier_loads_nothing_but_a_whole_model(tmp_path):
    make_crammed_bert().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({name: one for name, one in load_file(file).items() if "layers.1" not in name}, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"missing: model\.layers\.1\."):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)
    make_crammed_bert(classifier=True).save_pretrained(tmp_path)
    some = {name: one for name, one in load_file(file).items() if name != "classifier.out_proj.bias"}
    save_file(some, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"missing: classifier\.out_proj\.bias"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)
    make_masked_model().save_pretrained(tmp_path / "heads")
    with pytest.raises(ValueError, match=r"of kind 'multitoken_masked', not 'crammed_bert'"):
        CrammedBertForSequenceClassification.from_pretrained(tmp_path / "heads")


def test_texts_without_a_class_have_loss_0_and_finite_gradients():
    model, ids = make_crammed_bert(classifier=True, num_labels=3), token_ids(2, 6)
    loss = model(ids, labels=torch.tensor([-100, -100])).loss
    loss.backward()
    assert loss == 0 and all(torch.isfinite(one.grad).all() for one in model.parameters() if one.grad is not None)
    one = model(ids, labels=torch.tensor([2, -100])).loss
    torch.testing.assert_close(one, model(ids[:1], labels=torch.tensor([2])).loss)


def test_a_mask_of_half_precision_counts_as_one_of_integers():
    model, ids = make_crammed_bert(), token_ids(1, 300)
    mask = torch.ones_like(ids)
    assert torch.equal(model(ids, attention_mask=mask.bfloat16()).logits, model(ids, attention_mask=mask).logits)
    with pytest.raises(ValueError, match="attention_mask"):
        make_crammed_bert(classifier=True)(ids[:, :4], attention_mask=torch.ones(1, 1, 4, 4))


@pytest.mark.parametrize("problem", [(1, [0.5, -1.0]), (3, [2, 0]), (2, [[1.0, 0.0], [1.0, 1.0]])])
def test_the_kind_of_labels_chooses_the_loss(problem):
    num_labels, labels = problem
    model, ids = make_crammed_bert(classifier=True, num_labels=num_labels), token_ids(2, 6)
    logits, labels = model(ids).logits, torch.tensor(labels)
    expected = {
        1: lambda: F.mse_loss(logits[:, 0], labels),
        3: lambda: F.cross_entropy(logits, labels),
        2: lambda: F.binary_cross_entropy_with_logits(logits, labels),
    }[num_labels]()
    torch.testing.assert_close(model(ids, labels=labels).loss, expected)


@pytest.mark.parametrize(
    "field",
    [
        {"hidden_size": 33, "num_attention_heads": 3},
        {"intermediate_size": 63},
        {"num_attention_heads": 5},
        {"num_hidden_layers": 0},
        {"hidden_dropout_prob": 1.0},
        {"pad_token_id": -1},
        {"layer_norm_eps": 0.0},
    ],
    ids=str,
)
def test_a_wrong_field_is_told(field):
    with pytest.raises(ValueError, match=next(iter(field))):
        CrammedBertConfig(**{**SIZES, **field})


@pytest.mark.parametrize("problem_type", ["multi_label_classification", None])
def test_several_classes_of_a_text_are_learnt_from_whole_numbers(problem_type):
    model = make_crammed_bert(classifier=True, problem_type=problem_type)
    labels = torch.tensor([[1, 0], [1, 1]])
    for dtype in (torch.float32, torch.bfloat16):
        output = model.to(dtype)(token_ids(2, 6), labels=labels)
        expected = F.binary_cross_entropy_with_logits(output.logits.float(), labels.float())
        torch.testing.assert_close(output.loss, expected)
