"""What users of Transformers do, beyond the contract: adapters of other tasks, devices, attentions, more tokens."""

import accelerate
import pytest
import torch
from peft import LoraConfig, get_peft_model

from hf_targets import DifformerForConditionalGeneration
from tests.gaussian_diffusion.models import KINDS, make_difformer, noisy_pairs
from tests.memory import realigned

every_kind = pytest.mark.parametrize("kind", KINDS)


def fixed(kind, **config):
    """Return a model whose loss does not depend on chance, given its times and noise."""
    model = make_difformer(kind, self_conditioning="both", **config)
    return model, noisy_pairs(model)


def gradients(model, batch):
    model.zero_grad()
    torch.manual_seed(3)
    model(**batch).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


@every_kind
def test_reentrant_checkpointing_gives_the_same_gradients(kind):
    model, batch = fixed(kind, dropout=0.2)
    expected = gradients(model.train(), batch)
    model.activation_checkpointing_enable({"use_reentrant": True})
    model.enable_input_require_grads()  # it needs an input with a gradient
    found = gradients(model, batch)
    assert found.keys() == expected.keys() == dict(model.named_parameters()).keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_a_model_whose_weights_are_elsewhere_draws_its_noise_where_it_computes():
    model, batch = fixed("difformer")
    accelerate.cpu_offload(model, execution_device="cpu")
    model(batch["input_ids"], labels=batch["labels"]).loss.backward()


@every_kind
@pytest.mark.parametrize(
    "on_disk", [("decoder", "heads"), ("encoder", "lengths"), ("embed_tokens", "lm_head", "decoder")]
)
def test_a_model_that_is_loaded_onto_several_devices_gives_the_same_loss(kind, on_disk, tmp_path):
    model, batch = fixed(kind)
    model.save_pretrained(tmp_path / "model")
    places = dict.fromkeys(name for name, _ in model.named_children())
    places = {name: "disk" if name in on_disk else "cpu" for name in places}
    loaded = DifformerForConditionalGeneration.from_pretrained(
        tmp_path / "model", device_map=places, offload_folder=tmp_path / "disk"
    )
    torch.testing.assert_close(loaded(**batch).loss, model(**batch).loss)
    weight = 0.2 if model.config.multitoken else 0.0
    assert len(loaded.generate(batch["input_ids"], batch["attention_mask"], ensemble_weight=weight)) == 3


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_every_attention_gives_the_same_loss(attention, tmp_path):
    model, batch = fixed("difformer")
    model.save_pretrained(tmp_path)
    loaded = realigned(DifformerForConditionalGeneration.from_pretrained(tmp_path, attn_implementation=attention))
    assert loaded.config._attn_implementation == attention
    torch.testing.assert_close(loaded(**batch).loss, model(**batch).loss)


def test_a_vocabulary_grows_with_its_tied_output(tmp_path):
    model, batch = fixed("difformer")
    before = model(**batch).logits
    model.resize_token_embeddings(60)
    assert model.config.vocab_size == 60 and model.lm_head.weight is model.embed_tokens.weight
    sizes = model.embedded(torch.arange(60)).square().mean(dim=1).sqrt()
    assert 0.5 < sizes[50:].mean() / sizes[1:50].mean() < 2
    after = model(**batch).logits
    torch.testing.assert_close(after[..., :50], before)
    batch["labels"][0, 0] = 59
    model.save_pretrained(tmp_path)
    again = realigned(DifformerForConditionalGeneration.from_pretrained(tmp_path))
    torch.testing.assert_close(again(**batch).loss, model(**batch).loss)
    with pytest.raises(ValueError, match="the vocabulary must keep eos_token_id=1, got 1 tokens"):
        again.resize_token_embeddings(1)


def test_an_adapter_on_the_one_embedding_of_source_text_and_output_is_refused():
    for fields in ({"modules_to_save": ["embed_tokens"]}, {"target_modules": ["q_proj", "embed_tokens"]}):
        model, batch = fixed("difformer")
        tuned = get_peft_model(model, LoraConfig(**{"target_modules": ["q_proj"], **fields}))
        with pytest.raises(ValueError, match="one matrix serves source, text and output, and an adapter on embed_tok"):
            tuned(**batch)


def test_the_former_padding_token_is_trained_once_ids_are_those_of_a_tokenizer():
    model, _ = fixed("difformer")
    former, model.config.pad_token_id = model.config.pad_token_id, 5
    model.embedded(torch.tensor([[former]])).sum().backward()
    assert model.embed_tokens.weight.grad[former].all()


@pytest.mark.parametrize("task", ["SEQ_2_SEQ_LM", "FEATURE_EXTRACTION", None])
def test_every_task_of_peft_gives_the_same_loss_and_texts(task):
    model, batch = fixed("difformer")
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected, text = model(**batch).loss, model.generate(**source, generator=torch.Generator().manual_seed(0))
    tuned = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], task_type=task))
    assert torch.equal(tuned(**batch).loss, expected)
    assert torch.equal(tuned.generate(**source, generator=torch.Generator().manual_seed(0)), text)


def test_what_only_models_that_write_token_by_token_read_is_refused_in_words():
    model, batch = fixed("difformer")
    with pytest.raises(ValueError, match="reads input_ids and labels, and no decoder_input_ids"):
        model(**batch, decoder_input_ids=batch["labels"])
    with pytest.raises(ValueError, match="writes all tokens at once; call its own generate"):
        model.prepare_inputs_for_generation(batch["input_ids"])
