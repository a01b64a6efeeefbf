"""Models that own their output layer: whatever layer stands there, the loss is that of its logits, also smoothed."""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torch.nn import functional as F
from transformers import TrainingArguments

from hf_targets import MultiTokenForCausalLM, MultiTokenTrainer, MultiTokenTrainingArguments
from hf_targets.training.trainer import TargetTrainer
from tests.awd_lstm.models import make_awd_lstm
from tests.awd_lstm.training import text_blocks
from tests.crammed_bert.models import make_crammed_bert
from tests.tensorized_transformer.models import make_tensorized
from tests.tiny_backbones import make_backbone, token_ids
from tests.tiny_masked import masked_batch

MODELS: dict[str, Any] = {
    "awd_lstm": lambda: make_awd_lstm(activation_weight=0.0, temporal_weight=0.0),
    "crammed_bert": make_crammed_bert,
    "tensorized": make_tensorized,
}
every_model = pytest.mark.parametrize("name", MODELS)


def batch_of(name: str) -> dict[str, Any]:
    return masked_batch() if name == "crammed_bert" else dict.fromkeys(("input_ids", "labels"), token_ids(2, 9))


def expected_loss(name: str, model: Any, batch: dict[str, Any], smoothing: float = 0.0) -> torch.Tensor:
    logits, labels = model(batch["input_ids"]).logits, batch["labels"]
    if name != "crammed_bert":
        logits, labels = logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)


def with_lora(model: Any) -> Any:
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False))
    return adapted.eval()


def with_a_saved_copy(model: Any) -> Any:
    others = [name for name, part in model.named_modules() if isinstance(part, nn.Linear) and name != "lm_head"]
    target = others[:1] or ["model.embed_tokens"]  # an LSTM has no other linear layer
    adapted = get_peft_model(model, LoraConfig(r=2, target_modules=target, modules_to_save=["lm_head"]))
    with torch.no_grad():
        adapted.base_model.model.lm_head.modules_to_save["default"].weight.mul_(1.5)
    return adapted.eval()


def quantized(model: Any) -> Any:
    return quantize_dynamic(copy.deepcopy(model), {nn.Linear})


@every_model
@pytest.mark.parametrize("change", [with_lora, with_a_saved_copy, quantized])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_the_loss_is_that_of_the_logits_of_the_layer_that_stands_there(name, change, smoothing):
    plain, batch = MODELS[name](), batch_of(name)
    before = plain(**batch).loss.detach()
    model = change(plain)
    output = model(**batch, label_smoothing=smoothing)
    # what is quantized is scaled by all states of a call, and a loss may have fewer of them
    close = {"rtol": 2e-3, "atol": 0.0} if change is quantized else {}
    torch.testing.assert_close(output.loss, expected_loss(name, model, batch, smoothing), **close)
    assert (output.loss - before).abs() > 1e-5, "the layer that was replaced is still the one that is used"
    if change is not quantized:
        output.loss.backward()
        trained = [parameter.grad for part, parameter in model.named_parameters() if "lm_head" in part]
        assert any(grad is not None and grad.any() for grad in trained)


class Doubled(nn.Linear):
    """A linear layer with a forward of its own, as some adapters and quantized layers are."""

    def forward(self, states):
        return 2 * super().forward(states)


@every_model
def test_a_linear_layer_with_a_forward_of_its_own_is_called(name):
    model, batch = MODELS[name]().double(), batch_of(name)
    model.lm_head.__class__ = Doubled
    loss = model(**batch).loss
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss, expected_loss(name, model, batch))


@every_model
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_labels_are_smoothed_as_cross_entropy_does(name, smoothing):
    model, batch = MODELS[name](), batch_of(name)
    torch.testing.assert_close(
        model(**batch, label_smoothing=smoothing).loss, expected_loss(name, model, batch, smoothing)
    )


def test_a_trainer_smooths_the_labels_of_a_training_and_not_those_of_an_evaluation(tmp_path):
    options = {"output_dir": str(tmp_path), "report_to": "none", "use_cpu": True, "label_smoothing_factor": 0.2}
    rows, model = text_blocks(4), MODELS["tensorized"]()
    trainer = MultiTokenTrainer(model, MultiTokenTrainingArguments(**options), train_dataset=rows, eval_dataset=rows)
    assert trainer.label_smoother is None and trainer.args.label_smoothing_factor == 0.2
    batch = {"input_ids": token_ids(2, 9), "labels": token_ids(2, 9)}
    expected = [expected_loss("tensorized", model, batch, smoothing).item() for smoothing in (0.2, 0.0)]
    found = [trainer.compute_loss(mode(), dict(batch)).item() for mode in (model.train, model.eval)]
    assert found == pytest.approx(expected, rel=1e-5)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0


def test_a_model_that_a_trainer_makes_itself_smooths_its_labels(tmp_path):
    options = {"report_to": "none", "use_cpu": True, "label_smoothing_factor": 0.2, "max_steps": 1}
    args = TrainingArguments(str(tmp_path), **options)
    trainer = TargetTrainer(args=args, model_init=lambda: MODELS["tensorized"](), train_dataset=text_blocks(4))
    batch = dict.fromkeys(("input_ids", "labels"), token_ids(2, 9))
    expected = expected_loss("tensorized", MODELS["tensorized"](), batch, 0.2).item()
    assert trainer.compute_loss(trainer.model.train(), dict(batch)).item() == pytest.approx(expected, rel=1e-5)
    trainer.train()


def test_heads_refuse_an_output_layer_that_they_cannot_share_and_tell_the_way_out():
    with pytest.raises(ValueError, match="leave it out of quantization and of an adapter's"):
        MultiTokenForCausalLM.from_base(quantized(make_backbone("gpt2")))
    packed = make_backbone("gpt2")
    packed.lm_head.weight = nn.Parameter(torch.zeros(24, 64, dtype=torch.uint8), requires_grad=False)  # of bitsandbytes
    with pytest.raises(ValueError, match="leave it out of quantization"):
        MultiTokenForCausalLM.from_base(packed)
