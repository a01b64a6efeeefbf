"""Checks of a configuration's fields against the types that its class declares."""

import inspect
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from transformers.configuration_utils import PreTrainedConfig


def check_fields(config: PreTrainedConfig) -> None:
    """Check that each field declared by a class of ours has a value of the declared type.

    A float may be given as an integer; True and False are no integers. A field of several literals must be one of them.

    Raises:
        ValueError: If a value is of another type, with the field, the types that it may have, and the value.
    """
    names = {field.name for field in fields(config)}  # pyright: ignore[reportArgumentType]
    for cls in type(config).__mro__:
        if not issubclass(cls, PreTrainedConfig) or cls is PreTrainedConfig:
            continue
        for name, declared in inspect.get_annotations(cls).items():
            if name in names:
                _check_field(name, getattr(config, name), declared)


def _check_field(name: str, value: Any, declared: Any) -> None:
    kinds = get_args(declared) if get_origin(declared) in (Union, UnionType) else (declared,)
    if any(_is_of(value, kind) for kind in kinds):
        return
    told = [_described(kind) for kind in kinds]
    allowed = f"one of {told[0]}" if get_origin(kinds[0]) is Literal and len(kinds) == 1 else " or ".join(told)
    hint = "; leave out the quotation marks" if isinstance(value, str) and {int, float} & {*kinds} else ""
    raise ValueError(f"{name} must be {allowed}, got {value!r}{hint}")


def _is_of(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


def _described(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(map(repr, get_args(kind)))
    names = {int: "an integer", float: "a number", bool: "True or False", str: "a text", NoneType: "None"}
    return names.get(kind) or f"a {kind.__name__}"
