"""Heads under TRL's trainers: its own loss stays as it is, and the heads learn from the same pass beside it."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from hf_targets import MultiTokenDPOTrainer, MultiTokenGRPOTrainer, MultiTokenSFTTrainer
from tests.tiny_models import WORDS, make_any, make_backbone
from tests.trainer_runs import assert_same, losses, weights

SHORT = {"max_steps": 2, "use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True, "logging_steps": 1}
SHORT |= {"learning_rate": 0.01, "save_strategy": "no"}
TEXTS = Dataset.from_dict({"text": ["w1 w2 w3 w4 w5", "w2 w3 w7 w8 w9 w1"] * 4})
PAIRS = Dataset.from_dict({"prompt": ["w1 w2"] * 8, "chosen": ["w3 w4 w5"] * 8, "rejected": ["w8"] * 8})
SAID = [{"role": "user", "content": "w1 w2"}, {"role": "assistant", "content": "w3 w4 w5 w6"}]
ROWS = {
    "texts": (TEXTS, {}),
    "packed": (TEXTS, {"packing": True, "max_length": 16}),
    "completions": (Dataset.from_dict({"prompt": ["w1 w2 w3"] * 8, "completion": ["w4 w5 w7 w8"] * 8}), {}),
    "messages": (Dataset.from_dict({"messages": [SAID] * 8}), {"assistant_only_loss": True}),
    "wrapped": (TEXTS, {"packing": True, "packing_strategy": "wrapped", "max_length": 16}),
    "formatted": (Dataset.from_dict({"said": ["w1 w2 w3 w4"] * 8}), {}),
    "stream": (TEXTS.to_iterable_dataset(), {}),
}
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}"
    "{% endgeneration %}{% else %}{{ message['content'] }}{% endif %} {% endfor %}"
)


@pytest.fixture
def tune(tmp_path, monkeypatch):
    """Return a function that makes a trainer of supervised fine-tuning."""
    monkeypatch.setattr(WORDS, "chat_template", TEMPLATE)

    def make(model, data=TEXTS, kind=MultiTokenSFTTrainer, given=(), **options):
        args = SFTConfig(str(tmp_path), **{**SHORT, **options})
        return kind(model, args, train_dataset=data, processing_class=WORDS, **dict(given))

    return make


@pytest.mark.parametrize(("frozen", "options"), [(True, {}), (False, {}), (True, {"neftune_noise_alpha": 5.0})])
def test_with_no_weight_on_the_heads_the_steps_are_those_of_trl(tune, frozen, options):
    plain, model = make_backbone("llama"), make_any("llama", "difference")
    model.config.loss_weight = 0.0
    model.heads.requires_grad_(not frozen)
    options = {"per_device_train_batch_size": 2, **options}
    tuned = tune(plain, kind=SFTTrainer, **options), tune(model, **options)
    for trainer in tuned:
        torch.manual_seed(0)  # of NEFTune's noise
        trainer.train()
    logged = [[(entry["loss"], entry["grad_norm"]) for entry in losses(trainer)] for trainer in tuned]
    close = {"rtol": 0, "atol": 0} if frozen else {}  # their zeros change the order in which a norm is summed
    torch.testing.assert_close(torch.tensor(logged[0]), torch.tensor(logged[1]), **close)
    assert len(logged[0]) == 2
    assert_same(weights(model.backbone), weights(plain), **close)


@pytest.mark.parametrize("rows", ROWS)
def test_the_loss_is_twice_the_models_own_on_the_same_targets(tune, rows):
    data, options = ROWS[rows]
    model = make_any("llama", "difference")
    given = {"formatting_func": lambda row: row["said"]} if rows == "formatted" else {}
    trainer = tune(model, data, given=given, **options)
    batch = next(iter(trainer.get_train_dataloader()))
    assert rows not in ("completions", "messages") or (batch["labels"][:, :2] == -100).all()
    trained = list(model.train().parameters())
    own, found = 2 * model(**batch).loss, trainer.compute_loss(model, dict(batch))
    torch.testing.assert_close(found, own)
    gradients = [torch.autograd.grad(loss, trained, allow_unused=True) for loss in (found, own)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_a_stream_is_resumed_in_its_second_pass_and_may_be_shuffled(tune, tmp_path):
    rows = Dataset.from_dict({"text": [f"w{n} w{n + 1} w{n + 2} w{n + 3}" for n in range(1, 6)]}).to_iterable_dataset()
    options = {"max_steps": 5, "per_device_train_batch_size": 2, "save_strategy": "steps", "save_steps": 1}
    logs = []
    for size, checkpoint in ((None, None), (3, None), (3, str(tmp_path / "checkpoint-4")), (3, True)):
        given = {"shuffle_buffer_size": size}
        trainer = tune(make_any("llama", "difference"), rows, given=given, **options)
        trainer.train(resume_from_checkpoint=checkpoint)
        logs.append([(entry["loss"], entry["epoch"]) for entry in losses(trainer)])
    assert logs[0] != logs[1] == logs[2] == logs[3] and len(logs[1]) == 5  # the last one takes no step


def test_messages_without_a_template_and_rows_without_a_target_within_the_length_are_refused(
    tune, monkeypatch, tmp_path, caplog
):
    data, options = ROWS["messages"]
    longer = Dataset.from_dict({"messages": [SAID] * 3 + [[{"role": "user", "content": "w1 " * 8}, SAID[1]]]})
    assert len(tune(make_any("llama", "difference"), longer, max_length=6, **options).train_dataset) == 3
    assert "1 of 4 rows have no token" in caplog.text
    with pytest.raises(ValueError, match="raise max_length"):
        tune(make_any("llama", "difference"), data, max_length=2, **options)
    monkeypatch.setattr(WORDS, "chat_template", None)
    with pytest.raises(ValueError, match="messages with roles need a chat template"):
        tune(make_any("llama", "difference"), data, **options)
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    tune(make_any("llama", "difference"), data, chat_template_path=str(tmp_path / "template.jinja"), **options)


def test_batches_of_a_step_count_as_one_batch_and_each_part_is_logged(tune):
    runs = []
    for batch, accumulated in ((8, 1), (2, 4)):
        model = make_any("llama", "difference")
        sizes = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulated}
        trainer = tune(model, **sizes, max_steps=1)
        trainer.train()
        runs.append({name: value for name, value in losses(trainer)[0].items() if name.startswith("loss")})
    assert runs[0] == pytest.approx(runs[1], rel=1e-4) and {"loss_head_1", "loss_head_3"} <= runs[0].keys()


def test_beside_adapters_heads_are_trained_whole_and_an_evaluation_is_trls(tune):
    model, config = make_any("llama", "difference"), LoraConfig(target_modules="all-linear")
    given = {"peft_config": config, "head_learning_rate": 0.5, "eval_dataset": TEXTS}
    trainer = tune(model, given=given, lr_scheduler_type="constant")
    trainer.train()
    assert {group["lr"] for group in trainer.optimizer.param_groups} == {0.01, 0.5}
    trained = {name for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    assert all("lora_" in name or "heads" in name for name in trained) and any("heads" in name for name in trained)
    assert not any("heads" in name and "lora_" in name for name in trained) and config.modules_to_save is None
    merged = trainer.model.merge_and_unload()
    found = tune(merged.backbone, kind=SFTTrainer, given={"eval_dataset": TEXTS}).evaluate()["eval_loss"]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(found, rel=1e-5)


def test_heads_keep_their_type_where_trl_makes_adapters_of_a_packed_base_bfloat16(tune):
    model = make_any("llama", "difference")
    model.is_loaded_in_8bit = True
    tuner = tune(model, given={"peft_config": LoraConfig(target_modules=["q_proj"])})
    tuner.train()
    kinds = {name.split(".")[-2]: w.dtype for name, w in tuner.model.named_parameters() if w.requires_grad}
    assert kinds.pop("default") == torch.bfloat16 and {*kinds.values()} == {torch.float32}


@pytest.mark.parametrize("halves", [1, 2])
def test_preferences_keep_their_loss_and_heads_learn_from_the_chosen_answers(tmp_path, halves):
    sizes = {"per_device_train_batch_size": 8 // halves, "gradient_accumulation_steps": halves}
    logged = []
    for kind, make in ((DPOTrainer, make_backbone), (MultiTokenDPOTrainer, lambda name: make_any(name, "difference"))):
        model, args = make("llama"), DPOConfig(str(tmp_path), **{**SHORT, **sizes, "max_steps": 1})
        trainer = kind(model, make("llama"), args, train_dataset=PAIRS, processing_class=WORDS)
        batch = next(iter(trainer.get_train_dataloader()))
        trainer.train()
        logged += losses(trainer)
    parts = [logged[1][f"loss_head_{n}"] for n in (1, 2, 3)]
    assert logged[1]["loss"] == pytest.approx(logged[0]["loss"] + 0.1 * sum(parts) / 3, rel=1e-5)
    text, is_answer = batch["input_ids"][:1], batch["completion_mask"][:1].bool()
    own = make_any("llama", "difference")(input_ids=text, labels=text.masked_fill(~is_answer, -100)).loss_parts
    assert parts == pytest.approx([own[f"head_{n}"].item() for n in (1, 2, 3)], rel=1e-5)


@pytest.mark.parametrize("halves", [1, 2])
def test_rewards_keep_their_loss_and_heads_learn_from_the_sampled_answers(tmp_path, halves):
    sizes = {"per_device_train_batch_size": 8 // halves, "gradient_accumulation_steps": halves, "num_generations": 2}
    logged = []
    for kind, make in (
        (GRPOTrainer, make_backbone),
        (MultiTokenGRPOTrainer, lambda name: make_any(name, "difference")),
    ):
        options = {**SHORT, **sizes, "max_steps": 1, "max_completion_length": 5}
        rewards = [lambda completions, **_: [float(len(text)) for text in completions]]
        data = {"train_dataset": PAIRS.select_columns(["prompt"]), "processing_class": WORDS}
        trainer = kind(make("llama"), rewards, GRPOConfig(str(tmp_path), **options), **data)
        trainer.train()
        logged += losses(trainer)
    parts = [logged[1][f"loss_head_{n}"] for n in (1, 2, 3)]
    assert logged[1]["loss"] == pytest.approx(logged[0]["loss"] + 0.1 * sum(parts) / 3, rel=1e-5)
    assert logged[1]["reward"] == logged[0]["reward"] and min(parts) > 0


@pytest.mark.filterwarnings("ignore:`label_smoothing_factor:FutureWarning")
@pytest.mark.parametrize(
    ("model", "options", "told"),
    [
        (lambda: make_backbone("llama"), {}, "has no heads"),
        (lambda: make_any("llama", "difference"), {"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
        (lambda: make_any("llama", "difference").requires_grad_(False), {}, "frozen"),
    ],
)
def test_heads_that_would_not_be_trained_are_told(tune, model, options, told):
    with pytest.raises(ValueError, match=told):
        tune(model(), **options)
