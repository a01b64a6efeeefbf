"""What every model owes its user; a new model has its case in `tests/TARGET/cases.py`.

`tests/contract/` goes on with what a user of Transformers does by reflex, with trainers, with files and with weights
that are elsewhere.
"""

import copy
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from peft import LoraConfig, PeftModel, TrainableTokensConfig, get_peft_model
from transformers import AutoConfig

from hf_targets.backbones.configuration import PACKAGE_IMPORT
from hf_targets.backbones.new_parts import new_parameters, new_parts_of, unwrapped
from hf_targets.training.lora import add_lora
from tests.memory import realigned
from tests.model_cases import (
    CASES,
    ONE_OF_A_CLASS,
    ONE_OF_A_KIND,
    every_class,
    every_kind,
    every_model,
    every_model_and_side,
    every_wrapper_class,
    models_that_owe,
)
from tests.programs import run_program
from tests.trainer_runs import CHECKPOINTING, assert_same, weights, with_dropout

KEY_BIAS = re.compile(r"\.k_proj\.bias$")


def gradients(model, batch):
    """Return the loss of a batch and a copy of every gradient."""
    model.zero_grad()
    torch.manual_seed(3)
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@every_model
def test_a_saved_model_comes_back_bit_for_bit_through_the_auto_class(case, tmp_path):
    model, batch = case.make(), case.batch()
    model.save_pretrained(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir() if file.name != PACKAGE_IMPORT} == {".json", ".safetensors"}
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == type(model).config_class.model_type
    again = realigned(case.auto.from_pretrained(tmp_path))
    assert type(again) is type(model) and not again.training
    assert_same(weights(again), weights(model), rtol=0, atol=0)
    one, other = model(**batch), again(**batch)
    assert torch.equal(other.loss, one.loss)
    assert one.logits is None or torch.equal(other.logits, one.logits)


@every_kind
def test_the_configuration_survives_json(case, tmp_path):
    kind = type(case.make().config)
    config = kind(**{**case.make().config.to_dict(), **case.settings})
    config.save_pretrained(tmp_path)
    assert all(getattr(AutoConfig.from_pretrained(tmp_path), name) == value for name, value in case.settings.items())
    texts = [config.to_json_string(use_diff=use_diff) for use_diff in (False, True)]
    for again in (AutoConfig.from_pretrained(tmp_path), *(kind.from_dict(json.loads(text)) for text in texts)):
        assert type(again) is kind
        assert again.to_dict() | {"_name_or_path": ""} == config.to_dict() | {"_name_or_path": ""}


@every_model
def test_with_the_target_switched_off_it_is_the_model_without_bit_for_bit(case):
    off, bare = case.off(case.make())
    assert torch.equal(off, bare)


@every_model
def test_the_loss_is_the_weighted_sum_of_its_parts(case):
    model = case.make()
    output, shares = model(**case.batch()), case.part_weights(model)
    assert output.loss_parts.keys() == shares.keys()
    assert not any(part.requires_grad for part in output.loss_parts.values())
    total = sum(shares[name] * part for name, part in output.loss_parts.items())
    torch.testing.assert_close(output.loss, total)


@every_model
def test_a_step_without_a_target_has_loss_0_and_finite_gradients(case):
    model = case.make().train()
    for count in (None, 0, torch.tensor(0)):
        output = model(**case.without_targets(), num_items_in_batch=count)
        output.loss.backward()
        assert output.loss == 0 and all(part == 0 for part in output.loss_parts.values())
        assert all(p.grad is None or p.grad.eq(0).all() for p in model.parameters())


@every_model_and_side
def test_padding_on_either_side_changes_nothing(case, side):
    model, lengths = case.make().double().train(), (5, 9, 1)
    alone = [model(**case.text(length), **case.options, skip_logits=False) for length in lengths]
    batch = case.padded(lengths, side)
    together = model(**batch, **case.options, skip_logits=False)
    mask = case.is_text(batch)
    rounding = 1e-5 if model.config.get_text_config().model_type == "gpt_neo" else 1e-6  # its attention is in float32
    for row, single in enumerate(alone):
        torch.testing.assert_close(together.logits[row][mask[row]], single.logits[0], rtol=rounding, atol=rounding)
    counts = [case.num_targets(case.text(length)) for length in lengths]
    expected = sum(one.loss * count for one, count in zip(alone, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(together.loss, expected)


@models_that_owe("rows")
def test_rows_apart_add_up_to_the_step_of_the_batch(case):
    model, batch = case.make().double().train(), case.batch()
    whole, expected = gradients(model, batch)
    model.zero_grad()
    rows = [{name: value[row : row + 1] for name, value in batch.items()} for row in range(len(batch["input_ids"]))]
    losses = [model(**row).loss for row in rows]
    counts = [case.num_targets(row) for row in rows]
    apart = [model(**row, num_items_in_batch=torch.tensor(sum(counts))).loss for row in rows]
    torch.testing.assert_close(sum(apart), whole)
    shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
    torch.testing.assert_close(torch.stack(apart) / torch.stack(losses), shares)
    sum(apart).backward()
    for name, parameter in model.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-6, atol=1e-8)


@every_model
def test_every_trainable_parameter_gets_a_gradient_and_every_frozen_one_none(case):
    model, batch = case.make().train(), case.batch()
    _, found = gradients(model, batch)
    assert dict(model.named_parameters()).keys() - found.keys() == case.unused
    # what is added to all keys alike changes no attention
    assert [name for name, gradient in found.items() if not gradient.any() and not KEY_BIAS.search(name)] == []
    ours = list(map(id, new_parameters(model) or [next(model.parameters())]))
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in ours)
    _, found = gradients(model, batch)
    assert found.keys() == {name for name, parameter in model.named_parameters() if id(parameter) in ours}


@models_that_owe("LoRA", ONE_OF_A_KIND)
def test_lora_trains_the_adapters_and_the_new_part_alone_and_comes_back(case, tmp_path):
    model, batch = case.make(), case.batch()
    names, own = new_parts_of(model), len(new_parameters(model))
    model.enable_input_require_grads()  # the layers of some backbones pass on no gradient otherwise
    tuned = add_lora(model, 2).train()
    _, found = gradients(tuned, batch)
    adapters = {key for key in found if "lora_" in key}
    assert adapters
    assert len(found.keys() - adapters) == own
    assert all(any(f"{name}.modules_to_save" in key for name in names) for key in found.keys() - adapters)
    with torch.no_grad():
        for parameter in tuned.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter) if parameter.requires_grad else 0)
    tuned.eval().save_pretrained(tmp_path)
    expected = tuned(**batch).loss
    again = realigned(PeftModel.from_pretrained(case.make(), tmp_path)).eval()
    assert torch.equal(again(**batch).loss, expected)
    torch.testing.assert_close(tuned.merge_and_unload()(**batch).loss, expected, rtol=1e-3, atol=1e-3)


@every_wrapper_class
def test_an_adapter_is_added_saved_and_read_again_and_none_is_taken_from_the_base(case, tmp_path):
    case.make().save_pretrained(tmp_path / "model")
    model, batch = case.auto.from_pretrained(tmp_path / "model"), case.batch()
    config = LoraConfig(target_modules="all-linear", init_lora_weights=False, modules_to_save=new_parts_of(model))
    config.exclude_modules = rf".*\b{new_parts_of(model)[0]}\..*"
    model.add_adapter(config)
    model.save_pretrained(tmp_path / "adapter")
    for load in (type(model).from_pretrained, case.auto.from_pretrained):
        torch.testing.assert_close(load(tmp_path / "adapter")(**batch).loss, model.eval()(**batch).loss)
    config = LoraConfig(target_modules="all-linear")
    added = case.wraps()
    added.add_adapter(config)
    for base in (added, get_peft_model(case.wraps(), config)):
        with pytest.raises(ValueError, match="merge"):
            type(model).from_base(base)


@every_wrapper_class
@pytest.mark.parametrize("alone", [False, True])
def test_tokens_that_peft_trains_are_the_same_in_all_tied_matrices_before_and_after_merging(case, alone):
    if alone and case.source:
        pytest.skip("peft wraps tied embeddings twice")
    model, batch = case.make(), case.batch()
    layer = model.get_output_embeddings()
    assert layer.weight is model.get_input_embeddings().weight
    if layer.bias is not None:
        layer.bias.data.zero_()  # peft leaves it out until it has merged
    before, tokens = model(**batch, **case.options), [1, 2, 3]
    lora = LoraConfig(target_modules="all-linear", trainable_token_indices=tokens)
    tuned = get_peft_model(model, TrainableTokensConfig(token_indices=tokens) if alone else lora).eval()
    gradients(tuned, batch)
    (delta,) = [parameter for name, parameter in tuned.named_parameters() if "trainable_tokens_delta" in name]
    assert delta.grad.any()
    delta.data.mul_(-3)
    trained = tuned(**batch, **case.options)
    with tuned.disable_adapter():
        torch.testing.assert_close(tuned(**batch, **case.options).loss, before.loss)
    merged = tuned.merge_and_unload()(**batch, **case.options)
    assert not torch.allclose(trained.logits, before.logits, atol=0.1)
    torch.testing.assert_close(merged.logits, trained.logits)
    torch.testing.assert_close(merged.loss, trained.loss)


@pytest.mark.parametrize(
    ("case", "lora"),
    [
        pytest.param(case, lora, id=f"{name}-lora" if lora else name)
        for name, case in CASES.items()
        for lora in (False, True)
        if "checkpointing" not in case.lacks and (not lora or (name in ONE_OF_A_CLASS and "LoRA" not in case.lacks))
    ],
)
def test_gradient_checkpointing_gives_the_same_gradients(case, lora):
    model, batch = with_dropout(case.make()), case.batch()
    if lora:
        model.enable_input_require_grads()
        model = add_lora(model, 2)
    model.train()
    _, expected = gradients(model, batch)
    getattr(model, f"{CHECKPOINTING}_enable")()
    assert getattr(unwrapped(model), f"is_{CHECKPOINTING}")
    _, found = gradients(model, batch)
    assert_same(found, expected, rtol=1e-5, atol=1e-6)


@every_model
def test_half_precision_is_near_full_precision_with_a_float32_loss(case):
    model, batch = case.make().train(), {**case.batch(), **case.options, "skip_logits": False}
    full = model(**batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        automatic = model(**batch)
    automatic.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    for half in (automatic, model.bfloat16()(**batch)):
        assert half.loss.dtype == torch.float32
        assert abs(half.loss.item() / full.loss.item() - 1) < 0.05
        if "half logits" not in case.lacks:
            possible = full.logits > -1e5
            difference = (half.logits.float() - full.logits)[possible]
            assert difference.std() < 0.1 * full.logits[possible].std()


@every_class
def test_a_copy_is_a_model_of_its_own(case):
    model, batch = case.make(), case.batch()
    expected = model(**batch).loss
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(1.0)
    assert torch.equal(model(**batch).loss, expected)


@every_kind
def test_threads_get_what_each_would_alone(case):
    model, batches = case.make(), [*map(case.text, (3, 8, 5)), case.batch(), *map(case.text, (7, 4))]

    def work(batch):
        with torch.no_grad():
            output = model(**batch, **case.options)
            return output.logits, output.loss

    expected = [work(batch) for batch in batches]
    with ThreadPoolExecutor(3) as pool:
        torch.testing.assert_close(list(pool.map(work, batches)), expected)


@every_model
def test_bad_input_is_told_before_anything_is_computed(case):
    model, batch = case.make(), case.batch()
    ids, labels = batch["input_ids"], batch["labels"]
    shapes = r"labels must have the shape of (decoder_)?input_ids, \(\d+, \d+\), got \(\d+, \d+\)"
    if "labels of the text's shape" in case.lacks:
        shapes = r"noise \(\d+, \d+, \d+\), got \(\d+,\) and \(\d+, \d+, \d+\)"
    for changes, told in (
        ({**case.reading(labels.clamp(min=0)), "labels": labels[:, 1:].clamp(min=0)}, shapes),
        ({"labels": labels.float()}, "labels must be token ids, integers, got torch.float32"),
        ({"labels": labels.masked_fill(labels == labels[0, 2], -7)}, r"labels must be in \[0, .*got -7"),
        ({"labels": labels.masked_fill(labels == labels[0, 2], 10**6)}, r"labels must be in \[0, .*got 1000000"),
        ({"input_ids": ids.masked_fill(ids == ids[0, 2], 10**6)}, r"input_ids must be in \[0, .*got 1000000"),
        ({"input_ids": ids[:0], "labels": labels[:0]}, "at least one token"),
    ):
        with pytest.raises(ValueError, match=told):
            model(**{**batch, **changes})


_COMPILED = """
from tests.compiled import assert_same_compiled, assert_same_logits
from tests.model_cases import CASES
from tests.tiny_backbones import token_ids

for name, case in CASES.items():
    if case.compiled is not None:
        backend = "aot_eager" if name in ("conditional-llama", "mdlm-hidden") else "eager"
        assert_same_compiled(name, *case.compiled(), fullgraph="one graph" not in case.lacks, backend=backend)
    if name in ("phrases-llama", "masked-difference-bert", "masked-masked_only-modernbert"):
        assert_same_logits(name, case.make(), {"input_ids": token_ids(2, 8)}, exported=name.startswith("masked"))
print("same")
"""


@pytest.mark.compiled
def test_compiling_gives_the_same_loss_and_gradients():
    # in a process of its own: the shape checks of the test run cannot be compiled
    done = run_program(_COMPILED)
    assert done.stdout.endswith("same\n"), done.stderr
