"""Trainers read messages, and prompts with completions, as rows of tokens of which the model's own are targets."""

import json

import pytest
from datasets import Dataset
from transformers import DataCollatorWithFlattening

from hf_targets.data.conversations import conversation_rows
from hf_targets.masked_diffusion.rows import DiffusionCollator
from hf_targets.maths.losses import IGNORED
from tests.model_cases import CASES, TRAINERS
from tests.tiny_models import WORDS, make_collator
from tests.trainer_runs import SHORT, losses

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}{% if m.role == "
    "'assistant' %}w30 {{ m.content }} w31 {% else %}w32 {{ m.content }} w31 {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}w30 {% endif %}"
)
WRITTEN = "{{ m.content }} w31"
ENCLOSED = TEMPLATE.replace(WRITTEN, f"{{% generation %}}{WRITTEN}{{% endgeneration %}}", 1)


def turns(*contents, roles=("user", "assistant")):
    return [{"role": roles[number % 2], "content": content} for number, content in enumerate(contents)]


MESSAGES = {"messages": [turns("w1 w2 w1 w2", "w3 w4 w5"), turns("w1", "w2 w1", "w5", "w4 w1 w2 w1 w2")]}
TEXTS = ("w32 w1 w2 w1 w2 w31 w30 |w3 w4 w5 w31", "w32 w1 w31 w30 |w2 w1 w31 |w32 w5 w31 w30 |w4 w1 w2 w1 w2 w31")


def by_hand(*texts):
    """Return rows of texts in which every second part, between bars, is to be written."""
    rows = []
    for text in texts:
        parts = [(WORDS.encode(part), number % 2) for number, part in enumerate(text.split("|"))]
        labels = [id_ if written else IGNORED for ids, written in parts for id_ in ids]
        ids = [id_ for ids, _ in parts for id_ in ids]
        rows.append({"input_ids": ids, "attention_mask": [1] * len(ids), "labels": labels})
    return rows


@pytest.fixture(autouse=True)
def template(monkeypatch):
    monkeypatch.setattr(WORDS, "chat_template", TEMPLATE)


MODELS = {"multitoken": "difference-llama", "phrases": "phrases-llama", "masked_diffusion": "mdlm-plain-llama"}
COLLATORS = {"multitoken": lambda: None, "phrases": make_collator, "masked_diffusion": lambda: DiffusionCollator(WORDS)}


@pytest.mark.parametrize("name", MODELS)
def test_messages_are_trained_and_evaluated_as_the_same_tokens_with_labels_of_the_answers(name, tmp_path):
    case, hand, messages = TRAINERS[name], by_hand(*TEXTS), Dataset.from_dict(MESSAGES)
    if name == "multitoken":  # the collator of Transformers pads nothing
        fills, size = {"input_ids": 0, "labels": IGNORED, "attention_mask": 0}, max(len(row["labels"]) for row in hand)
        hand = [{key: row[key] + [fill] * (size - len(row[key])) for key, fill in fills.items()} for row in hand]
    own = COLLATORS[name]
    packing = own() or DataCollatorWithFlattening()
    packing.padding_free = True
    runs, found = [(Dataset.from_list(hand), own()), (messages, own()), (messages, packing)], []
    if name == "multitoken":
        runs.append((messages.to_iterable_dataset(), None))
    for rows, collator in runs:
        options = {**SHORT, "max_steps": 1, "report_to": "none", "train_sampling_strategy": "sequential"}
        trainer = case.trainer(
            model=CASES[MODELS[name]].make(),
            args=case.arguments(str(tmp_path), **options, **case.options),
            train_dataset=rows,
            eval_dataset=runs[0][0] if len(found) == 3 else rows,
            processing_class=WORDS,
            data_collator=collator,
        )
        trainer.train()
        found.append((losses(trainer)[0]["loss"], trainer.evaluate()["eval_perplexity"]))
    assert found[1:] == [pytest.approx(found[0])] * (len(runs) - 1)


@pytest.mark.parametrize("chat", [TEMPLATE, ENCLOSED], ids=["", "enclosed"])
@pytest.mark.parametrize(
    ("columns", "texts"),
    [
        (MESSAGES, TEXTS),
        ({"prompt": ["w1 w2"], "completion": [" w3 w4"]}, ["w1 w2 |w3 w4 <eos>"]),
        ({"messages": [turns("w1", "w2", "w3", roles=("assistant", "user"))]}, ["w30 |w1 w31 |w32 w2 w31 w30 |w3 w31"]),
        (
            {"prompt": [turns("w1", "w2", "w3")], "completion": [turns("w4", roles=("assistant",))]},
            ["w32 w1 w31 w30 w2 w31 w32 w3 w31 w30 |w4 w31"],
        ),
    ],
)
def test_the_targets_are_what_the_model_is_to_write_with_its_end(columns, texts, chat, monkeypatch):
    monkeypatch.setattr(WORDS, "chat_template", chat)
    rows, wanted = Dataset.from_dict(columns), by_hand(*texts)
    assert conversation_rows(rows, WORDS).to_list() == wanted
    cut = conversation_rows(rows.to_iterable_dataset(), WORDS, 11)
    assert list(cut) == [{name: column[:11] for name, column in row.items()} for row in wanted]


def test_a_template_that_asks_for_a_user_takes_rows_that_begin_with_the_system(monkeypatch):
    asks = "{% if messages[0].role == 'system' and not messages[1:] %}{{ raise_exception('no user') }}{% endif %}"
    monkeypatch.setattr(WORDS, "chat_template", asks + TEMPLATE)
    messages = [*turns("w9", roles=("system",)), *turns("w1", "w2")]
    rows = Dataset.from_dict({"messages": [messages]})
    assert conversation_rows(rows, WORDS).to_list() == by_hand("w32 w9 w31 w32 w1 w31 w30 |w2 w31")


def test_a_template_may_end_with_the_end_of_the_text(monkeypatch):
    monkeypatch.setattr(WORDS, "chat_template", TEMPLATE.removesuffix("{% endif %}") + "{% else %}<eos>{% endif %}")
    wanted = by_hand(*(f"{text} <eos>" for text in TEXTS))
    assert conversation_rows(Dataset.from_dict(MESSAGES), WORDS).to_list() == wanted


@pytest.mark.parametrize("convert", [list, lambda tools: [json.dumps(one) for one in tools]], ids=["lists", "texts"])
def test_a_call_has_its_own_arguments_and_a_tool_its_own_properties(convert, monkeypatch):
    calls = "{% if 'call' in m %}{{ m.call | join(' ') }}{% else %}{{ m.content }}{% endif %}"
    chat = "{% for tool in tools %}{{ tool | join(' ') }} {% endfor %}" + TEMPLATE.replace("{{ m.content }}", calls)
    monkeypatch.setattr(WORDS, "chat_template", chat)
    called = [turns("w1", None), turns("w1", None)]
    for number, messages in enumerate(called):
        messages[1]["call"] = {f"w{number + 2}": 1}
    tools = [[{"w8": 1}], [{"w9": 1}]]
    rows = Dataset.from_dict({"messages": called, "tools": convert(tools)})
    wanted = by_hand("w8 w32 w1 w31 w30 |w2 w31", "w9 w32 w1 w31 w30 |w3 w31")
    assert conversation_rows(rows, WORDS).to_list() == wanted


@pytest.mark.parametrize(
    ("messages", "chat", "limit", "told"),
    [
        (MESSAGES["messages"], None, None, "template"),
        (MESSAGES["messages"], TEMPLATE, 7, "1 of 2 rows"),
        ([turns("w1", "w2"), []], TEMPLATE, None, "lists of messages"),
        ([turns("w1", "w2"), turns("w1")], TEMPLATE, None, "1 of 2 rows"),
        ([turns("w1", "w2", roles=("user", "robot"))], TEMPLATE, None, "robot"),
        ([turns("w1", "w2", roles=("tool", "assistant"))], TEMPLATE, None, "no tools"),
        (MESSAGES["messages"], TEMPLATE.replace("'assistant' %}", "'assistant' and loop.last %}"), None, "generation"),
    ],
)
def test_conversations_without_targets_or_a_template_that_takes_them_are_told(messages, chat, limit, told, monkeypatch):
    monkeypatch.setattr(WORDS, "chat_template", chat)
    with pytest.raises(ValueError, match=told):
        conversation_rows(Dataset.from_dict({"messages": messages}), WORDS, limit)
