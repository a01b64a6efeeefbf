"""What every model owes its user; a new model adds itself to the tables in `tests/tiny_models.py`."""

import json
import subprocess
import sys

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, MambaConfig
from transformers.pytorch_utils import Conv1D

from hf_targets import DynamicVocabConfig, DynamicVocabForCausalLM, MultiTokenConfig, MultiTokenForCausalLM
from tests.memory import realigned
from tests.tiny_models import (
    ATTENTIONS,
    CACHED_FAMILIES,
    FAMILIES,
    KINDS,
    TARGETS,
    VOCAB,
    make_any,
    make_backbone,
    make_dynamic_model,
    make_model,
    make_vocabulary,
    new_part,
    phrase_ids,
    token_ids,
    training_inputs,
)

families = pytest.mark.parametrize("family", FAMILIES)
cached_families = pytest.mark.parametrize("family", CACHED_FAMILIES)
targets = pytest.mark.parametrize("target", TARGETS)
# in training Reformer takes multiples of its chunks alone, and a text with phrases is of any length
TRAINABLE = [(family, kind) for family in FAMILIES for kind in KINDS if (family, kind) != ("reformer", "phrases")]


@families
@targets
def test_a_saved_model_comes_back_bit_for_bit_through_the_auto_class(family, target, tmp_path):
    model = make_model(family, target=target, ensemble_weight=0.3)
    ids = token_ids(2, 16)
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "multitoken"
    again = realigned(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert isinstance(again, MultiTokenForCausalLM)
    for field in ("ngram_size", "target", "loss_weight", "ensemble_weight", "head", "head_bias"):
        assert getattr(again.config, field) == getattr(model.config, field)
    assert type(again.config.backbone) is type(model.config.backbone)
    assert again.config.backbone is again.backbone.config
    config = AutoConfig.from_pretrained(tmp_path)
    assert MultiTokenConfig.from_dict(json.loads(config.to_json_string(use_diff=False))).to_dict() == config.to_dict()
    expected, got = model(ids, labels=ids), again(ids, labels=ids)
    assert torch.equal(got.logits, expected.logits)
    assert torch.equal(got.loss, expected.loss)
    tensors = model.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.state_dict().items())


@families
def test_a_saved_dynamic_vocabulary_comes_back_bit_for_bit_through_the_auto_class(family, tmp_path):
    model, ids, vocabulary = make_dynamic_model(family, kl_direction="reverse"), phrase_ids(), make_vocabulary()
    model.save_pretrained(tmp_path)
    assert not list(tmp_path.glob("*.bin"))
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "dynamic_vocab"
    again = realigned(AutoModelForCausalLM.from_pretrained(tmp_path))
    assert isinstance(again, DynamicVocabForCausalLM)
    assert again.config.kl_direction == "reverse"
    for part, module in (("backbone", again.backbone), ("phrase_encoder", again.phrase_encoder.transformer)):
        assert type(getattr(again.config, part)) is type(getattr(model.config, part))
        assert getattr(again.config, part) is module.config
    config = AutoConfig.from_pretrained(tmp_path)
    assert DynamicVocabConfig.from_dict(json.loads(config.to_json_string(use_diff=False))).to_dict() == config.to_dict()
    expected, got = (one(ids, labels=ids, phrases=vocabulary) for one in (model, again))
    assert torch.equal(got.logits, expected.logits)
    assert torch.equal(got.loss, expected.loss)
    tensors = model.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.state_dict().items())


@pytest.mark.parametrize(("family", "attention"), ATTENTIONS)
def test_without_an_ensemble_the_logits_are_the_backbones_bit_for_bit(family, attention, tmp_path):
    base = make_backbone(family)
    base.save_pretrained(tmp_path)
    ids = token_ids(2, 16)
    mask = torch.ones_like(ids)
    mask[0, 10:] = 0
    bare = realigned(AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attention))
    model = realigned(MultiTokenForCausalLM.from_base(tmp_path, backbone_kwargs={"attn_implementation": attention}))
    expected = bare(input_ids=ids, attention_mask=mask).logits
    for weight in (None, 0.0):
        assert torch.equal(model(input_ids=ids, attention_mask=mask, ensemble_weight=weight).logits, expected)
    model.save_pretrained(tmp_path / "wrapped")
    again = realigned(AutoModelForCausalLM.from_pretrained(tmp_path / "wrapped", attn_implementation=attention))
    assert torch.equal(again(input_ids=ids, attention_mask=mask).logits, expected)


@cached_families
@targets
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing(family, target, side):
    model = make_model(family, target=target)
    rows = [token_ids(1, length, seed=length) for length in (7, 12)]
    alone = [model(row, labels=row, ensemble_weight=0.3) for row in rows]
    ids, mask = torch.zeros(2, 12, dtype=torch.long), torch.zeros(2, 12, dtype=torch.long)
    for number, row in enumerate(rows):
        place = slice(12 - row.shape[1], None) if side == "left" else slice(row.shape[1])
        ids[number, place], mask[number, place] = row[0], 1
    together = model(
        ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        labels=ids.masked_fill(mask == 0, -100),
        ensemble_weight=0.3,
        nll_weights=[0.0, 0.3],
    )
    for number, (row, single) in enumerate(zip(rows, alone, strict=True)):
        torch.testing.assert_close(together.logits[number][mask[number] == 1], single.logits[0], rtol=1e-4, atol=1e-4)
        nlls = model(row, labels=row, nll_weights=[0.0, 0.3]).nlls[0]
        torch.testing.assert_close(together.nlls[number], nlls, rtol=1e-4, atol=1e-4)
    counts = [row.shape[1] - 1 for row in rows]
    expected = sum(single.loss * count for single, count in zip(alone, counts, strict=True)) / sum(counts)
    torch.testing.assert_close(together.loss, expected, rtol=1e-4, atol=1e-4)


@families
@targets
def test_the_loss_is_the_weighted_sum_of_its_parts(family, target):
    model = make_model(family, target=target, ngram_size=3, loss_weight=0.6)
    ids = token_ids(2, 16)
    output = model(ids, labels=ids)
    next_word, *heads = output.loss_parts.values()
    assert list(output.loss_parts) == ["next_word", "head_1", "head_2"]
    torch.testing.assert_close(output.loss, next_word / 2 + 0.6 / 4 * sum(heads))


@pytest.mark.parametrize(("family", "kind"), TRAINABLE)
def test_every_trainable_parameter_gets_a_gradient_and_every_frozen_one_none(family, kind):
    model, batch = make_any(family, kind).train(), training_inputs(kind)
    unused = {"backbone.lm_head.bias"} if family == "reformer" else set()  # Reformer does not add it
    model(**batch).loss.backward()
    missing = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert missing == unused
    model.zero_grad()
    model.backbone.requires_grad_(False)
    model(**batch).loss.backward()
    assert all(p.grad is None for p in model.backbone.parameters())
    assert all(p.grad is not None for p in new_part(model).parameters())
    assert all(p.grad.abs().sum() > 0 for name, p in new_part(model).named_parameters() if ".k_proj.bias" not in name)


@families
def test_lora_trains_the_adapter_and_the_heads_alone(family):
    base = make_model(family)
    linear = (torch.nn.Linear, Conv1D)
    layers = [name for name, module in base.backbone.base_model.named_modules() if isinstance(module, linear)]
    config = LoraConfig(r=2, target_modules=layers, modules_to_save=["heads"], fan_in_fan_out=family == "gpt2")
    if family == "reformer":
        base.enable_input_require_grads()  # its reversible layers pass on no gradient otherwise
    model = get_peft_model(base, config).train()
    ids = token_ids(2, 16)
    model(input_ids=ids, labels=ids).loss.backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert trained
    assert all("lora_" in name or "heads.modules_to_save" in name for name in trained)
    assert any("lora_" in name for name in trained)
    assert sum("heads.modules_to_save" in name for name in trained) == 3 * 4


@cached_families
@pytest.mark.parametrize("kind", ["difference", "phrases"])
def test_gradient_checkpointing_gives_the_same_gradients(family, kind):
    model, batch = make_any(family, kind).train(), training_inputs(kind)
    model(**batch).loss.backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing
    model(**batch).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-5, atol=1e-6)


@cached_families
@targets
def test_bfloat16_is_near_full_precision_with_a_float32_loss(family, target):
    model = make_model(family, target=target)
    ids = token_ids(2, 12)
    full = model(ids, labels=ids, ensemble_weight=0.2)
    half = model.bfloat16()(ids, labels=ids, ensemble_weight=0.2)
    assert half.loss.dtype == torch.float32
    assert half.logits.dtype == torch.bfloat16
    assert abs(half.loss.item() / full.loss.item() - 1) < 0.05


@cached_families
def test_phrases_in_bfloat16_are_near_those_in_full_precision(family):
    model, batch, ids, vocabulary = (
        make_any(family, "phrases"),
        training_inputs("phrases"),
        phrase_ids(),
        make_vocabulary(),
    )
    full, logits = model(**batch), model(ids, phrases=vocabulary).logits
    half = model.bfloat16()(**batch)
    assert half.loss.dtype == torch.float32
    for name in ("phrase", "token"):
        assert abs(half.loss_parts[name] / full.loss_parts[name] - 1) < 0.05
    halved = model(ids, phrases=vocabulary).logits
    assert halved.dtype == torch.bfloat16
    assert (halved.float() - logits).std() < 0.1 * logits.std()


_COMPILED = """
import torch
from tests.tiny_models import make_any, new_part, training_inputs

for family, kinds in (("gpt_neo", ("difference", "embedding")), ("llama", ("difference", "embedding", "phrases"))):
    for kind in kinds:
        model, batch = make_any(family, kind).train(), training_inputs(kind)
        results = []
        for run in (model, torch.compile(model, backend="aot_eager")):
            loss = run(**batch).loss
            loss.backward()
            results.append((loss.detach(), *(p.grad.clone() for p in new_part(model).parameters())))
            model.zero_grad()
        for one, other in zip(*results):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
print("same")
"""


def test_compiling_gives_the_same_loss_and_gradients():
    # in a process of its own: the shape checks of the test run cannot be compiled
    command = [sys.executable, "-c", _COMPILED]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.endswith("same\n")


@families
@targets
def test_no_position_sees_what_comes_after_it(family, target):
    model = make_model(family, target=target)
    ids = token_ids(1, 16)
    changed = ids.clone()
    changed[0, 9:] = (ids[0, 9:] + 7) % VOCAB
    for weight in (0.0, 0.5):
        torch.manual_seed(0)
        before = model(ids, ensemble_weight=weight).logits[0, :9]
        torch.manual_seed(0)
        after = model(changed, ensemble_weight=weight).logits[0, :9]
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@families
def test_no_position_sees_the_phrases_after_it(family):
    model, vocabulary, ids = make_dynamic_model(family), make_vocabulary(), phrase_ids(2, 16)
    changed = torch.cat([ids[:, :9], ids[:, 9:].flip(0, 1)], dim=1)
    assert not torch.equal(changed, ids)
    before, after = (model(given, phrases=vocabulary).logits[:, :9] for given in (ids, changed))
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


@cached_families
@pytest.mark.usefixtures("clear_choices")
def test_cached_generation_is_uncached_generation(family):
    model = make_model(family).double()
    prompt = {"input_ids": token_ids(1, 6), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    cached = model.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert torch.equal(cached, model.generate(**prompt, max_new_tokens=8, do_sample=False, use_cache=False))
    bare = model.backbone.generate(**prompt, max_new_tokens=8, do_sample=False)
    assert torch.equal(cached, bare)


@families
@pytest.mark.parametrize("weight", [0.0, 0.4])
@pytest.mark.usefixtures("clear_choices")
def test_generation_takes_the_best_word_of_the_forward_pass(family, weight):
    model = make_model(family).double()
    ids = token_ids(1, 6)
    generated = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False, ensemble_weight=weight
    )
    for _ in range(generated.shape[1] - 6):
        torch.manual_seed(0)
        best = model(ids, ensemble_weight=weight).logits[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, best], dim=1)
    assert torch.equal(generated, ids)


def test_a_stateful_backbone_generates_what_it_would_alone():
    config = MambaConfig(
        vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4, bos_token_id=0, eos_token_id=0
    )
    backbone = AutoModelForCausalLM.from_config(config).eval()
    prompt = {"input_ids": token_ids(1, 6), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    expected = backbone.generate(**prompt, max_new_tokens=5, do_sample=False)
    model = MultiTokenForCausalLM.from_base(backbone).eval()
    assert torch.equal(model.generate(**prompt, max_new_tokens=5, do_sample=False), expected)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_static_cache_generates_the_same(family):
    model = make_model(family).double()
    prompt = {"input_ids": token_ids(1, 6), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    options = {"max_new_tokens": 4, "do_sample": False, "disable_compile": True}
    static = model.generate(**prompt, **options, cache_implementation="static")
    assert torch.equal(static, model.generate(**prompt, **options))


@cached_families
@pytest.mark.parametrize("weight", [0.0, 0.4])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.usefixtures("clear_choices")
def test_left_padded_rows_generate_what_each_does_alone(family, weight, beams):
    model = make_model(family).double()
    options = {"max_new_tokens": 5, "do_sample": False, "num_beams": beams, "ensemble_weight": weight}
    rows = [token_ids(1, length, seed=length) for length in (4, 7)]
    alone = [model.generate(row, attention_mask=torch.ones_like(row), **options)[0, row.shape[1] :] for row in rows]
    ids, mask = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 7, dtype=torch.long)
    for number, row in enumerate(rows):
        ids[number, 7 - row.shape[1] :], mask[number, 7 - row.shape[1] :] = row[0], 1
    together = model.generate(ids, attention_mask=mask, pad_token_id=0, **options)[:, 7:]
    for number, expected in enumerate(alone):
        assert together[number, : len(expected)].tolist() == expected.tolist()


@families
def test_bad_input_is_told_before_anything_is_computed(family):
    model = make_model(family)
    ids = token_ids(2, 8)
    with pytest.raises(ValueError, match=r"labels must have the shape of input_ids, \(2, 8\), got \(2, 7\)"):
        model(ids, labels=ids[:, 1:])
    with pytest.raises(ValueError, match=r"input_ids must be in \[0, 49\].*got 50"):
        model(ids.masked_fill(ids == ids[0, 0], VOCAB))
    with pytest.raises(ValueError, match=r"labels must be in \[0, 49\].*got -7"):
        model(ids, labels=ids.masked_fill(ids == ids[0, 0], -7))
    with pytest.raises(ValueError, match=r"labels must be token ids, integers, got torch.float32"):
        model(ids, labels=ids.float())
    with pytest.raises(ValueError, match=r"at least one token, got shape \(0, 8\)"):
        model(ids[:0])
    with pytest.raises(ValueError, match=r"in \[0, 1\], got 1.5"):
        model(ids, ensemble_weight=1.5)
    with pytest.raises(ValueError, match="return_dict=False"):
        model(ids, return_dict=False)
