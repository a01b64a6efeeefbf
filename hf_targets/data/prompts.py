"""Prompts of a model: messages through its tokenizer's chat template where it has one, else text as it is."""

from collections.abc import Mapping, Sequence

from jinja2.exceptions import TemplateError
from transformers import BatchEncoding, PreTrainedTokenizerBase

Turns = Sequence[Mapping[str, str]]
"""Messages with a `role` ("system", "user" or "assistant") and `content`; the last one is to be answered."""


def takes_turns(tokenizer: PreTrainedTokenizerBase, wanted: bool | None = None) -> bool:
    """Return whether to ask in messages: `wanted`, or if that is None whether the tokenizer has a chat template.

    Raises:
        ValueError: If messages are wanted and the tokenizer has no chat template.
    """
    if wanted and not tokenizer.chat_template:
        raise ValueError(
            f"messages with roles need a chat template, and this {type(tokenizer).__name__} has none; give text, the "
            "tokenizer of an instruction model, or set tokenizer.chat_template"
        )
    return bool(tokenizer.chat_template) if wanted is None else wanted


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: str | Turns) -> BatchEncoding:
    """Return the `input_ids` and `attention_mask`, (1, time), of a prompt that a model is to go on with or to answer.

    Messages become the text that the chat template makes of them, up to where the assistant's answer begins. Where a
    template takes no system message, the first message begins with it. Text is read as it is. Neither has the
    tokenizer's begin token twice.

    Raises:
        ValueError: If there is no text or message, or messages are given and the tokenizer has no chat template.

    >>> encode_prompt(tokenizer, [{"role": "user", "content": "Who wrote Hamlet?"}])  # doctest: +SKIP
    """
    if not prompt:
        raise ValueError(f"a prompt must be text or messages, got {prompt!r}")
    if isinstance(prompt, str):
        text, templated = prompt, bool(tokenizer.bos_token) and prompt.startswith(str(tokenizer.bos_token))
    else:
        takes_turns(tokenizer, True)
        text, templated = _templated(tokenizer, list(prompt)), True
    return tokenizer(text, add_special_tokens=not templated, return_tensors="pt", verbose=False)


def _templated(tokenizer: PreTrainedTokenizerBase, turns: Turns) -> str:
    try:
        return str(tokenizer.apply_chat_template(list(map(dict, turns)), tokenize=False, add_generation_prompt=True))
    except TemplateError:
        if turns[0]["role"] != "system" or len(turns) < 2:
            raise
        joined = f"{turns[0]['content']}\n\n{turns[1]['content']}"
        return _templated(tokenizer, [{**turns[1], "content": joined}, *turns[2:]])
