"""Models that are loaded by a name, whatever they predict."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForMaskedLM

from lab.embeddings import load_language_model
from tests.gaussian_diffusion.models import make_difformer
from tests.masked_diffusion.models import make_mdlm
from tests.tensorized_transformer.models import make_tensorized
from tests.tiny_backbones import make_backbone
from tests.tiny_masked import make_masked_backbone, make_masked_model
from tests.tiny_models import make_any
from tests.tiny_seq2seq import make_pair_backbone

MODELS = {
    "gpt2": lambda: make_backbone("gpt2"),
    "difference": lambda: make_any("gpt2", "difference"),
    "tensorized": make_tensorized,
    "bert": make_masked_backbone,
    "masked": make_masked_model,
    "marian": lambda: make_pair_backbone("marian"),
    "mdlm": make_mdlm,
    "difformer": make_difformer,
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_loaded_with_the_class_that_it_was_saved_with(name, tmp_path):
    model = MODELS[name]()
    model.save_pretrained(tmp_path)
    loaded = load_language_model(tmp_path)
    assert type(loaded) is type(model) and not loaded.training
    assert torch.equal(loaded.get_output_embeddings().weight, model.get_output_embeddings().weight)


def test_an_adapter_is_loaded_with_the_model_below_it(tmp_path):
    make_masked_backbone().save_pretrained(tmp_path / "base")
    base = AutoModelForMaskedLM.from_pretrained(tmp_path / "base")
    get_peft_model(base, LoraConfig(r=2, target_modules=["query"])).save_pretrained(tmp_path / "adapter")
    loaded = load_language_model(tmp_path / "adapter")
    assert type(loaded).__name__ == "BertForMaskedLM"
    assert any("lora" in name for name, _ in loaded.named_parameters())


def test_a_reformer_reads_a_text_the_same_twice(tmp_path):
    make_backbone("reformer", hash_seed=None, attn_layers=["lsh", "lsh"]).save_pretrained(tmp_path)
    model, ids = load_language_model(tmp_path), torch.arange(24)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, model(ids).logits)
