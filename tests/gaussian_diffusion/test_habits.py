"""What users of Transformers do, beyond the contract: adapters of other tasks, devices, attentions, more tokens."""

import accelerate
import pytest
import torch
from peft import LoraConfig, get_peft_model

from hf_targets.training.lora import add_lora
from tests.gaussian_diffusion.models import KINDS, make_difformer, noisy_pairs

every_kind = pytest.mark.parametrize("kind", KINDS)


def fixed(kind, **config):
    """Return a model whose loss does not depend on chance, given its times and noise."""
    model = make_difformer(kind, self_conditioning="both", **config)
    return model, noisy_pairs(model)


def test_a_model_whose_weights_are_elsewhere_draws_its_noise_where_it_computes():
    model, batch = fixed("difformer")
    accelerate.cpu_offload(model, execution_device="cpu")
    model(batch["input_ids"], labels=batch["labels"]).loss.backward()


@pytest.mark.parametrize("initializer_range", [0.2, None])
def test_a_vocabulary_grows_with_its_tied_output(initializer_range):
    model, _ = fixed("difformer", initializer_range=initializer_range)
    model.resize_token_embeddings(60)
    assert model.lm_head.weight is model.embed_tokens.weight
    sizes = model.embedded(torch.arange(60)).square().mean(dim=1).sqrt()
    assert 0.7 < sizes[50:].mean() / sizes[1:50].mean() < 1.4
    rows = model.resize_token_embeddings(70, mean_resizing=True).weight
    torch.testing.assert_close(rows[60:], rows[:60].mean(dim=0).expand(10, -1), rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="eos_token_id=1"):
        model.resize_token_embeddings(1)


def test_an_adapter_on_the_one_embedding_of_source_text_and_output_is_refused():
    model, batch = fixed("difformer")
    tuned = get_peft_model(model, LoraConfig(target_modules=["q_proj", "embed_tokens"]))
    with pytest.raises(ValueError, match="embed_tokens"):
        tuned(**batch)


def test_heads_and_the_network_that_weighs_curves_are_both_trained_beside_adapters():
    model, batch = fixed("difformer", multitoken={}, curve={"num_curves": 2})
    tuned = add_lora(model, 2).train()
    tuned(**batch).loss.backward()
    for part in (model.heads, model.decoder.curves):
        saved = [p for name, p in part.named_parameters() if "original_module" not in name]
        assert saved and all(parameter.requires_grad and parameter.grad is not None for parameter in saved)


@pytest.mark.parametrize("task", ["SEQ_2_SEQ_LM", None])
def test_every_task_of_peft_gives_the_same_loss_and_texts(task):
    model, batch = fixed("difformer")
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    expected, text = model(**batch).loss, model.generate(**source, generator=torch.Generator().manual_seed(0))
    tuned = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], task_type=task))
    assert torch.equal(tuned(**batch).loss, expected)
    assert torch.equal(tuned.generate(**source, generator=torch.Generator().manual_seed(0)), text)
