"""Drafts of a smaller model: the plain text for any rows, whatever it drafts, and all taken if it is the same model."""

import copy

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

from hf_targets import draft
from tests.multitoken.test_draft import GREEDY, TOLD, make_plain
from tests.multitoken.test_state_drafts import make_state_model
from tests.tiny_backbones import left_padded, make_backbone
from tests.tiny_models import make_drafting_model
from tests.tiny_seq2seq import make_pair_backbone

THRESHOLDS = [0.0, 0.15]


def openai_gpt():
    return OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=50, n_embd=16, n_layer=1, n_head=2)).eval()


def prompt_tuned():
    return get_peft_model(make_backbone("gpt2"), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt", "gpt_neo", "mistral", "gemma3", "mamba2"])
@pytest.mark.parametrize("rows", [1, 4])
def test_texts_are_the_plain_ones_and_a_model_takes_all_that_it_drafts_itself(family, rows):
    model = make_state_model(family) if family == "mamba2" else make_plain(family)
    same = make_plain("llama") if family == "mamba2" else model
    other = make_backbone("llama", seed=3).double()
    (ids, mask), told = left_padded(rows), {**TOLD, "eos_token_id": None, "max_new_tokens": 40}
    plain = model.generate(ids, attention_mask=mask, **told).sequences
    for assistant in (same, other):
        for threshold in THRESHOLDS:
            asked = {
                "assistant_confidence_threshold": threshold,
                "custom_generate": draft(assistant=assistant, num_tokens=4),
            }
            output = model.generate(ids, attention_mask=mask, **told, **asked)
            assert torch.equal(output.sequences, plain)
            taken, drafted = output.num_accepted_tokens, output.num_drafted_tokens
            assert output.accepted_by_source == ({"assistant": taken} if taken else {})
            if assistant is model and family not in ("mistral", "gemma3"):  # a window counts gaps too
                assert taken >= drafted - 4 * rows  # a text may end within a draft
                assert threshold or (taken > 20 * rows and output.num_forward_passes <= 9)


def test_rows_that_end_leave_and_auto_and_samples_are_those_without_an_assistant():
    model, (ids, mask) = make_plain("gpt2"), left_padded(4)
    told = {"attention_mask": mask, **GREEDY, "assistant_confidence_threshold": 0.0}
    plain = model.generate(ids, **told)
    ends = {**told, "eos_token_id": plain[:, 11:14].flatten().tolist()}
    drafts = draft(assistant=model)
    for asked in (ends, {**told, "draft_tokens": "auto"}):
        plainly = {name: value for name, value in asked.items() if name != "draft_tokens"}
        assert torch.equal(model.generate(ids, **asked, custom_generate=drafts), model.generate(ids, **plainly))
    texts = []
    for way in ({}, {"custom_generate": drafts}):
        torch.manual_seed(1)
        sampled = {**told, "attention_mask": mask[:1], "do_sample": True, "temperature": 0.5}
        texts.append(model.generate(ids[:1], **sampled, **way))
    assert torch.equal(*texts)


def test_a_text_goes_on_beyond_the_positions_of_its_assistant():
    model, (ids, mask) = make_plain("llama"), left_padded(2)
    short = make_backbone("gpt2", max_position_embeddings=16, n_positions=16).double()
    drafts = draft(assistant=short)
    told = {"attention_mask": mask, **GREEDY, "assistant_confidence_threshold": 0.0}
    assert torch.equal(model.generate(ids, **told, custom_generate=drafts), model.generate(ids, **told))


def test_an_assistant_may_have_an_adapter_and_other_padding_and_draft_after_embeddings():
    model, (ids, mask) = make_backbone("gpt2", vocab_size=200).double(), left_padded(4)
    told = {"attention_mask": mask, **TOLD, "eos_token_id": None, "assistant_confidence_threshold": 0.0}
    plain = model.generate(ids, **told).sequences
    lora = LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True)
    adapted = get_peft_model(copy.deepcopy(model), lora).eval()
    output = model.generate(ids, **told, custom_generate=draft(assistant=adapted, num_tokens=4))
    assert torch.equal(output.sequences, plain) and output.num_forward_passes <= 7
    for size in (199, 202):
        other = make_backbone("gpt2", vocab_size=size, tie_word_embeddings=False).double()
        with torch.no_grad():
            other.lm_head.weight[198:] *= 9  # so that it would write what the model does not have
        output = model.generate(ids, **told, custom_generate=draft(assistant=other))
        assert torch.equal(output.sequences, plain)
    embeds = {"inputs_embeds": model.get_input_embeddings()(ids), **told}
    output = model.generate(**embeds, custom_generate=draft(assistant=model))
    assert torch.equal(output.sequences, model.generate(**embeds).sequences)


@pytest.mark.parametrize(
    ("make", "make_assistant", "told"),
    [
        (lambda: make_backbone("gpt2"), lambda: make_backbone("gpt2", vocab_size=60), "60 tokens, the other 50"),
        (lambda: make_backbone("gpt2"), lambda: make_state_model("mamba2"), "Mamba2ForCausalLM cannot"),
        (lambda: make_backbone("gpt2"), lambda: make_pair_backbone("bart"), "causal"),
        (lambda: make_backbone("gpt2"), openai_gpt, "OpenAIGPTLMHeadModel cannot"),
        (openai_gpt, lambda: make_backbone("gpt2"), "OpenAIGPTLMHeadModel does not take"),
        (lambda: make_backbone("gpt2"), prompt_tuned, "peft has learnt"),
        (lambda: make_backbone("gpt2"), lambda: "gpt2", "is a model, got 'gpt2'"),
        (lambda: make_drafting_model("llama"), lambda: make_backbone("llama"), "with heads"),
    ],
    ids=["vocabulary", "state", "encoder-decoder", "uncached", "uncached model", "prompts", "name", "heads"],
)
def test_what_cannot_be_an_assistant_is_told(make, make_assistant, told):
    with pytest.raises(ValueError, match=told):
        make().generate(left_padded(1)[0], custom_generate=draft(assistant=make_assistant()), **GREEDY)
