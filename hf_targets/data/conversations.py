"""Rows of tokens of conversations, and of prompts with completions; targets are what the model is to write."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from datasets import Dataset, Features, IterableDataset, List, Value
from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from hf_targets.data.prompts import takes_turns
from hf_targets.data.token_rows import ROWS_AT_ONCE
from hf_targets.data.tokenization import encode
from hf_targets.maths.losses import IGNORED

_ENCLOSED = re.compile(r"{%-?\s*generation\b")
ROLES = ("system", "developer", "user", "assistant", "tool")
_ROW = Features({name: List(Value("int64")) for name in ("input_ids", "attention_mask", "labels")})


def holds_conversations(dataset: Any) -> bool:
    """Return whether rows have `messages`, or `prompt` and `completion`, and no `input_ids` yet."""
    if not isinstance(dataset, Dataset | IterableDataset):
        return False
    columns = {*_columns(dataset)}
    return "input_ids" not in columns and ("messages" in columns or {"prompt", "completion"} <= columns)


def conversation_rows(
    dataset: Any, tokenizer: PreTrainedTokenizerBase, max_row_length: int | None = None, *, name: str = "data"
) -> Any:
    """Return rows of tokens whose targets are the assistant's messages, or the completion, each with its end token.

    A prompt and its completion are texts, or lists of messages. The end token of a completion that is a text is the
    tokenizer's. A message of the assistant is what the chat template adds for it after the generation prompt, without
    white space at its end; in a template with `{% generation %}` it is what that encloses.

    Args:
        dataset: A `datasets.Dataset`, or a stream, whose rows are made as they are read. A column `tools`, of lists or
            of their JSON texts, is passed to the template. Nulls in tools and in calls of tools are left out.
        max_row_length: The most tokens of a row, which keeps its first ones; None: any number.
        name: Of the data, for errors.
    Returns: The same kind of data set, with `input_ids`, `attention_mask` (ones) and `labels`, -100 at other tokens.
    Raises:
        ValueError: If messages are given and the tokenizer has no chat template, a role is unknown, the template
            changes earlier messages, or rows have no target, as all of it is cut off; a stream tells when it is read.

    >>> from hf_targets.data.tokenization import word_level_tokenizer
    >>> tokenizer = word_level_tokenizer(["the cat the end\\n"])
    >>> rows = Dataset.from_dict({"prompt": ["the cat"], "completion": [" the end"]})
    >>> conversation_rows(rows, tokenizer)[0]["input_ids"], conversation_rows(rows, tokenizer)[0]["labels"]
    ([0, 2, 0, 3, 1], [-100, -100, 0, 3, 1])
    """
    columns, whole = _columns(dataset), isinstance(dataset, Dataset)
    if whole and not len(dataset):
        raise ValueError(f"{name}: there must be rows, got none")
    make = partial(_rows, tokenizer=tokenizer, max_row_length=max_row_length, name=name, raises=not whole)
    options = {"batched": True, "batch_size": ROWS_AT_ONCE, "remove_columns": columns, "features": _ROW}
    rows = cast(Any, dataset).map(make, **options)
    if whole:
        batches = rows.select_columns(["labels"]).iter(ROWS_AT_ONCE)
        has_target = [_has_target(labels) for batch in batches for labels in batch["labels"]]
        _check_targets(has_target, max_row_length, name)
    return rows


def _columns(dataset: Any) -> list[str]:
    return list(dataset.column_names or next(iter(dataset), {}))


def _rows(
    batch: Mapping[str, list],
    *,
    tokenizer: PreTrainedTokenizerBase,
    max_row_length: int | None,
    name: str,
    raises: bool,
) -> dict[str, list[list[int]]]:
    """Return the three columns of a batch of rows."""
    ids, labels = [], []
    for number in range(len(next(iter(batch.values())))):
        row = {column: values[number] for column, values in batch.items()}
        read, targets = _tokens(row, tokenizer)
        ids.append(read[:max_row_length])
        labels.append(targets[:max_row_length])
    if raises:
        _check_targets(list(map(_has_target, labels)), max_row_length, name)
    return {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids], "labels": labels}


def _tokens(row: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the ids and the labels of a row."""
    given = row.get("messages")
    prompt, completion = (row.get("prompt"), row.get("completion")) if given is None else ([], given)
    if isinstance(prompt, str) and isinstance(completion, str):
        return _completion(prompt, completion, tokenizer)
    if not isinstance(prompt, list) or not isinstance(completion, list) or not completion:
        raise ValueError(
            "a row needs messages, or a prompt and a completion that are two texts or two lists of messages, got "
            f"{ {name: value for name, value in row.items() if name != 'tools'}!r:.200}"
        )
    takes_turns(tokenizer, True)
    messages, first = [*prompt, *completion], len(prompt)
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            raise ValueError(f"a message must have a role, one of {', '.join(ROLES)}, got {message!r:.80}")
    try:
        return _conversation(messages, first, row.get("tools"), tokenizer)
    except TemplateError as error:
        roles = ", ".join(message["role"] for message in messages)
        raise ValueError(f"the chat template does not take messages of {roles}, in this order: {error}") from error


def _completion(prompt: str, completion: str, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    (ids,), (offsets,) = encode([prompt + completion], tokenizer)
    bos, eos = cast(tuple[Any, Any], (tokenizer.bos_token_id, tokenizer.eos_token_id))
    is_added = tokenizer(prompt + completion, verbose=False)["input_ids"][:1] == [bos]
    begin = [bos] if is_added and ids[:1] != [bos] else []
    end = [] if eos in (None, *ids[-1:]) else [eos]
    labels = [id_ if stop > len(prompt) else IGNORED for id_, (_, stop) in zip(ids, offsets, strict=True)]
    return [*begin, *ids, *end], [*[IGNORED] * len(begin), *labels, *end]


def _conversation(
    messages: Sequence[Mapping[str, Any]], first: int, tools: Any, tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[int]]:
    """Return the ids and the labels of messages, of which the assistant's are targets from number `first` on."""
    given = [
        {key: _known(value) for key, value in message.items() if value is not None or key == "content"}
        for message in messages  # a template may ask whether a content is null
    ]
    tools = _known(json.loads(tools) if isinstance(tools, str) else tools)
    render: Any = partial(tokenizer.apply_chat_template, tools=tools, tokenize=False)
    text = render(given)
    (ids,), (offsets,) = encode([text], tokenizer)
    written = [number for number, message in enumerate(given) if message["role"] == "assistant" and number >= first]
    spans = [(len(render(given[:first], add_generation_prompt=True)) if first else 0, len(text))] if written else []
    marked = [True] * len(ids)
    if _ENCLOSED.search(str(tokenizer.chat_template)):
        found: Any = render(given, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        marked = list(map(bool, found["assistant_masks"]))
    else:
        opening = ""  # what is before a first message of the assistant
        if 0 in written and (begin := render(given[:1], add_generation_prompt=True).removeprefix(render(given[:1]))):
            opening = "".join(text.partition(begin)[:2])
        before = [render(given[:n], add_generation_prompt=True) if n else opening for n in written]
        after = [render(given[: n + 1]).rstrip() for n in written]
        eos = str(tokenizer.eos_token or "")  # which some templates write behind the last message alone
        after = [end if text.startswith(end) else end.removesuffix(eos).rstrip() for end in after]
        sides = list(zip(before, after, strict=True))
        if not all(text.startswith(side) for pair in sides for side in pair):
            raise ValueError(
                "the chat template writes a message in another way once others follow; enclose what the assistant "
                "writes in {% generation %} there, or give a prompt and one completion a row"
            )
        spans = [(len(start), len(end)) for start, end in sides]
    labels = [IGNORED] * len(ids)
    for index, (start, stop) in enumerate(offsets):
        if marked[index] and any(begin < stop and start < end for begin, end in spans):
            labels[index] = ids[index]
    return ids, labels


def _known(value: Any) -> Any:
    """Return a value without the nulls that Arrow gives to names which only other rows have."""
    if isinstance(value, Mapping):
        return {name: _known(one) for name, one in value.items() if one is not None}
    return [_known(one) for one in value] if isinstance(value, list) else value


def _has_target(labels: Sequence[int]) -> bool:
    return any(label != IGNORED for label in labels)


def _check_targets(has_target: Sequence[bool], max_row_length: int | None, name: str) -> None:
    without = [row for row, has in enumerate(has_target) if not has]
    if without:
        cut = (
            "" if max_row_length is None else f", or all of it is cut off after max_row_length={max_row_length} tokens"
        )
        raise ValueError(
            f"{name}: {len(without)} of {len(has_target)} rows, row {without[0]} first, have nothing that the model is "
            f"to write{cut}; remove them{cut and ', or raise max_row_length'}"
        )
