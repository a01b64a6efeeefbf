"""What somebody adds without touching the package: a loss, and a family of backbones. Others: test_registry.py."""

import pytest
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from hf_targets import DynamicVocabForCausalLM, MultiTokenForCausalLM, MultiTokenTrainer, MultiTokenTrainingArguments
from tests.phrases.models import random_vocabulary
from tests.tiny_models import VOCAB, make_backbone, token_ids


class WithSmallStates(MultiTokenForCausalLM):
    """A loss of one's own: large hidden states cost something."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **{**kwargs, "output_last_hidden_state": True})
        if output.loss is not None:
            assert output.last_hidden_state is not None and output.loss_parts is not None
            penalty = output.last_hidden_state.square().mean()
            output.loss = output.loss + 0.1 * penalty
            output.loss_parts = {**output.loss_parts, "size": penalty.detach()}
        return output


def test_a_loss_is_a_class_whose_parts_are_trained_and_logged(tmp_path):
    model = WithSmallStates.from_base(make_backbone("gpt2"), ngram_size=2, loss_weight=0.5)
    ids = token_ids(4, 8).tolist()
    rows = Dataset.from_list([{"input_ids": row, "labels": row} for row in ids])
    settings = {"max_steps": 3, "per_device_train_batch_size": 4, "logging_steps": 1, "report_to": "none"}
    settings["remove_unused_columns"] = False  # Trainer reads the columns from the parameters of forward
    args = MultiTokenTrainingArguments(str(tmp_path), use_cpu=True, **settings)
    trainer = MultiTokenTrainer(model=model, args=args, train_dataset=rows)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    for entry in logs:
        total = entry["loss_next_token"] / 2 + 0.5 / 2 * entry["loss_head_1"] + 0.1 * entry["loss_size"]
        assert entry["loss"] == pytest.approx(total, rel=1e-3)
    assert logs[-1]["loss_size"] < logs[0]["loss_size"]


class RunningMeanConfig(PreTrainedConfig):
    model_type = "running_mean"
    vocab_size: int = VOCAB
    hidden_size: int = 16


class RunningMeanModel(PreTrainedModel):
    config_class = RunningMeanConfig
    base_model_prefix = "model"

    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.mix = nn.Linear(config.hidden_size, config.hidden_size)
        self.post_init()

    def forward(self, input_ids=None, inputs_embeds: Tensor | None = None, attention_mask=None, **kwargs):
        embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if attention_mask is not None:
            embeds = embeds * attention_mask[..., None].to(embeds.dtype)
        steps = torch.arange(1, embeds.shape[1] + 1, device=embeds.device)
        return BaseModelOutput(last_hidden_state=embeds + torch.tanh(self.mix(embeds.cumsum(dim=1) / steps[:, None])))


class RunningMeanForCausalLM(RunningMeanModel, GenerationMixin):
    def __init__(self, config):
        PreTrainedModel.__init__(self, config)
        self.model = RunningMeanModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self):
        return self.lm_head

    def forward(self, input_ids=None, logits_to_keep=0, **kwargs):
        return CausalLMOutput(logits=self.lm_head(self.model(input_ids, **kwargs).last_hidden_state))


@pytest.fixture(scope="module", autouse=True)
def _registered():
    AutoConfig.register("running_mean", RunningMeanConfig)
    AutoModel.register(RunningMeanConfig, RunningMeanModel)
    AutoModelForCausalLM.register(RunningMeanConfig, RunningMeanForCausalLM)


@pytest.mark.parametrize("wrapper", [MultiTokenForCausalLM, DynamicVocabForCausalLM])
def test_a_family_of_backbones_is_one_that_transformers_knows(wrapper, tmp_path):
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(RunningMeanConfig()).eval()
    model = wrapper.from_base(base).eval()
    ids = token_ids(2, 8)
    assert torch.equal(model(ids).logits, base(ids).logits)
    output = model(ids, labels=ids)
    output.loss.backward()
    assert all(p.grad is not None for p in model.backbone.parameters())
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is wrapper
    extra = {"phrases": random_vocabulary(5)} if wrapper is DynamicVocabForCausalLM else {"ensemble_weight": 0.2}
    torch.testing.assert_close(again(ids, **extra).logits, model(ids, **extra).logits)
    text = model.generate(ids, max_new_tokens=3, do_sample=False, use_cache=False, pad_token_id=0, eos_token_id=None)
    assert torch.equal(text, base.generate(ids, max_new_tokens=3, use_cache=False, pad_token_id=0, eos_token_id=None))
