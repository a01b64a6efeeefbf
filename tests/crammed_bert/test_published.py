"""Checkpoints of the published program: what is read, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import save_file

from hf_targets import CrammedBertForMaskedLM, CrammedBertForSequenceClassification
from tests.crammed_bert.models import options, published_tensors
from tests.tiny_backbones import token_ids


def write(folder, tensors, content, name="model.safetensors", config="config.json"):
    folder.mkdir(exist_ok=True)
    if content is not None:
        (folder / config).write_text(json.dumps(content))
    if name.endswith(".safetensors"):
        save_file(tensors, folder / name)
    else:
        torch.save(tensors, folder / name)
    return folder


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.pth"])
@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module._orig_mod."])
def test_a_folder_gives_what_its_tensors_give(tmp_path, name, prefix):
    tensors, ids = published_tensors(), token_ids(2, 8)
    folder = write(tmp_path, {prefix + key: tensor for key, tensor in tensors.items()}, options(), name)
    model = CrammedBertForMaskedLM.from_published(folder)
    assert model.config.num_attention_heads == 4 and model.config.max_position_embeddings == 32
    assert model.config.hidden_dropout_prob == 0.0 and not model.training
    expected = CrammedBertForMaskedLM.from_published(tensors, num_attention_heads=4)(ids).logits
    assert torch.equal(model(ids).logits, expected)
    assert torch.equal(CrammedBertForMaskedLM.from_published(folder / name)(ids).logits, expected)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pth"])
def test_what_the_program_saves_itself_has_its_options_in_a_flat_file(tmp_path, name):
    embedding = {**options()["arch"]["embedding"], "max_seq_length": 77}
    content = options(norm_eps=1e-5, embedding=embedding)["arch"]
    folder = write(tmp_path, published_tensors(), content, name, "model_config.json")
    config = CrammedBertForMaskedLM.from_published(folder).config
    assert (config.num_attention_heads, config.layer_norm_eps, config.max_position_embeddings) == (4, 1e-5, 77)
    causal = {**content, "attention": {**content["attention"], "causal_attention": True}}
    write(tmp_path, published_tensors(), causal, name, "model_config.json")
    with pytest.raises(ValueError, match=r"attention\.causal_attention=True"):
        CrammedBertForMaskedLM.from_published(folder)


def test_without_options_the_number_of_heads_is_asked_for(tmp_path):
    with pytest.raises(ValueError, match="num_attention_heads"):
        CrammedBertForMaskedLM.from_published(write(tmp_path, published_tensors(), None))
    assert CrammedBertForMaskedLM.from_published(tmp_path, num_attention_heads=4).config.layer_norm_eps == 1e-12


def test_a_pre_trained_checkpoint_gives_a_new_classifier_and_a_classifier_no_masked_model(caplog):
    tensors, ids = published_tensors(), token_ids(2, 8)
    model = CrammedBertForSequenceClassification.from_published(tensors, num_attention_heads=4, num_labels=3)
    assert model(ids).logits.shape == (2, 3) and "has no classifier, so that of this model is new" in caplog.text
    expected = CrammedBertForMaskedLM.from_published(tensors, num_attention_heads=4).model(ids)[0]
    assert torch.equal(model.model(ids)[0], expected)
    with pytest.raises(ValueError, match="CrammedBertForSequenceClassification"):
        CrammedBertForMaskedLM.from_published(published_tensors(labels=3), num_attention_heads=4)


def test_an_output_matrix_of_its_own_is_refused():
    other = {**published_tensors(), "decoder.weight": torch.zeros(50, 32)}
    with pytest.raises(ValueError, match="output matrix"):
        CrammedBertForMaskedLM.from_published(other, num_attention_heads=4)


def test_older_checkpoints_without_the_tied_matrix_and_with_the_table_of_sines_are_read(tmp_path):
    tensors = published_tensors()
    del tensors["decoder.weight"]
    tensors["encoder.embedding.pos_embedding.pe"] = torch.zeros(1, 32, 32)
    model = CrammedBertForMaskedLM.from_published(write(tmp_path, tensors, options()))
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_classifier_takes_its_pooling_and_its_labels_from_the_checkpoint(tmp_path):
    head = {**options()["arch"]["classification_head"], "pooler": "zero_index"}
    folder = write(tmp_path, published_tensors(labels=3), options(classification_head=head))
    model = CrammedBertForSequenceClassification.from_published(folder)
    assert model.config.classifier_pooling == "cls" and model.config.num_labels == 3


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"nonlin": "GELU"}, "nonlin='GELU'"),
        ({"skip_head_transform": False}, "skip_head_transform=False"),
        ({"attention": {"rotary_embedding": "v2"}}, "rotary_embedding='v2'"),
        ({"classification_head": {"pooler": "max"}}, "'max'"),
    ],
)
def test_another_architecture_of_the_program_is_refused(tmp_path, change, told):
    with pytest.raises(ValueError, match=told):
        CrammedBertForMaskedLM.from_published(write(tmp_path, published_tensors(), options(**change)))


@pytest.mark.parametrize("name", ["encoder.layers.1.ffn.dense_out.weight", "encoder.embedding.word_embedding.weight"])
def test_a_missing_tensor_is_told(name):
    tensors = published_tensors()
    del tensors[name]
    with pytest.raises(ValueError, match=r"model\.layers\.1\.dense_out\.weight|no CrammedBERT"):
        CrammedBertForMaskedLM.from_published(tensors, num_attention_heads=4)


def test_an_extra_tensor_an_extra_field_and_another_type_of_numbers():
    extra = {**published_tensors(), "prediction_head.dense.weight": torch.zeros(32, 32)}
    with pytest.raises(ValueError, match=r"prediction_head\.dense\.weight"):
        CrammedBertForMaskedLM.from_published(extra, num_attention_heads=4)
    with pytest.raises(ValueError, match="heads"):
        CrammedBertForMaskedLM.from_published(published_tensors(), heads=4)
    half = CrammedBertForMaskedLM.from_published(published_tensors(), num_attention_heads=4, dtype="bfloat16")
    assert half.dtype == torch.bfloat16
