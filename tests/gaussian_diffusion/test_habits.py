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


def test_a_model_whose_weights_are_elsewhere_draws_its_noise_where_it_computes():
    model, batch = fixed("difformer")
    accelerate.cpu_offload(model, execution_device="cpu")
    model(batch["input_ids"], labels=batch["labels"]).loss.backward()


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
    with pytest.raises(ValueError, match="eos_token_id=1"):
        again.resize_token_embeddings(1)


def test_an_adapter_on_the_one_embedding_of_source_text_and_output_is_refused():
    for fields in ({"modules_to_save": ["embed_tokens"]}, {"target_modules": ["q_proj", "embed_tokens"]}):
        model, batch = fixed("difformer")
        tuned = get_peft_model(model, LoraConfig(**{"target_modules": ["q_proj"], **fields}))
        with pytest.raises(ValueError, match="adapter on embed_tokens"):
            tuned(**batch)


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
