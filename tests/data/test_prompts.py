"""A prompt is what the tokenizer's chat template makes of messages, or text as it is, with one begin token."""

import pytest
from jinja2.exceptions import TemplateError
from tokenizers import processors

from hf_targets.data.prompts import encode_prompt, takes_turns
from tests.small_tokenizers import sentencepiece

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and refuse %}{{ raise_exception('no system') }}{% endif %}"
    "<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant: {% endif %}"
)
TURNS = [{"role": "system", "content": "the mat"}, {"role": "user", "content": "a cat"}]


@pytest.mark.parametrize(
    ("template", "prompt", "read"),
    [
        (TEMPLATE, TURNS, "<s>system: the mat</s><s>user: a cat</s><s>assistant: "),
        (
            TEMPLATE.replace("refuse", "true"),
            [*TURNS, {"role": "assistant", "content": "sat"}],
            "<s>user: the mat\n\na cat</s><s>assistant: sat</s><s>assistant: ",
        ),
        (TEMPLATE, "a cat", "a cat"),
        (None, "<s>a cat", "<s>a cat"),
    ],
)
def test_a_prompt_is_read_with_its_roles_and_one_begin_token(template, prompt, read):
    tokenizer = sentencepiece(legacy=False)
    begin = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)])
    tokenizer.backend_tokenizer.post_processor, tokenizer.chat_template = begin, template
    encoded = encode_prompt(tokenizer, prompt)
    [ids] = encoded["input_ids"].tolist()
    assert ids == tokenizer(read, add_special_tokens="<s>" not in read)["input_ids"]
    assert ids[0] == tokenizer.bos_token_id != ids[1] and encoded["attention_mask"].shape == (1, len(ids))


def test_messages_without_a_chat_template_are_refused_and_text_is_taken():
    tokenizer = sentencepiece(legacy=False)
    assert not takes_turns(tokenizer)
    for ask in (lambda: takes_turns(tokenizer, True), lambda: encode_prompt(tokenizer, TURNS)):
        with pytest.raises(ValueError, match="chat template"):
            ask()
    tokenizer.chat_template = TEMPLATE
    assert takes_turns(tokenizer) and not takes_turns(tokenizer, False)
    for empty in ("", []):
        with pytest.raises(ValueError, match="prompt"):
            encode_prompt(tokenizer, empty)
    told = "messages | length == 2 or messages[0].role == 'system'"
    tokenizer.chat_template = f"{{% if {told} %}}{{{{ raise_exception('roles') }}}}{{% endif %}}"
    for turns in (TURNS[:1], [TURNS[1]] * 2):  # what no system message explains
        with pytest.raises(TemplateError, match="roles"):
            encode_prompt(tokenizer, turns)
