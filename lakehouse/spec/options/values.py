"""Convert the string values of options to the typed fields of policies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, fields, is_dataclass, replace
from typing import Any, TypeVar

from lakehouse.errors import SettingError, UserError, nearest
from lakehouse.model.pattern import compile_pattern

_Policy = TypeVar("_Policy")


def declared_options(policy: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield each option of a policy with its value, including the options of nested policies."""
    for declared in fields(policy):
        value = getattr(policy, declared.name)
        if "key" in declared.metadata:
            yield declared, value
        else:
            for part in value if isinstance(value, tuple) else (value,):
                yield from declared_options(part)


def override_fields(policy: _Policy, options: Mapping[str, str]) -> _Policy:
    """Return a copy of a policy with the values in `options`, or the same object if they change nothing.

    Raises UserError with the key whose value is invalid.
    """
    changes: dict[str, Any] = {}
    for declared in fields(policy):  # type: ignore[arg-type]
        value = getattr(policy, declared.name)
        changed = _override_value(declared, value, options)
        if changed is not value:
            changes[declared.name] = changed
    return replace(policy, **changes) if changes else policy  # type: ignore[type-var]


def _override_value(declared: Field[Any], value: Any, options: Mapping[str, str]) -> Any:
    if is_dataclass(value):
        return override_fields(value, options)
    if "key" not in declared.metadata:
        parts = tuple(override_fields(part, options) for part in value)
        return value if all(new is old for new, old in zip(parts, value, strict=True)) else parts
    for key in (declared.metadata["key"], *declared.metadata["aliases"]):
        if key in options:
            value = _parse(declared, options[key], type(value))
    return value


def _parse(declared: Field[Any], value: str, kind: type) -> Any:
    key, choices, text = declared.metadata["key"], declared.metadata["choices"], str(value).strip()
    if choices:
        matches = [choice for choice in choices if choice.lower() == text.lower()]
        if not matches:
            allowed = f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
            why = nearest(text, choices) if len(choices) > 1 else f" {declared.metadata['text']}"
            raise SettingError(f"option {key}={value!r}: must be {allowed}.{why}", setting=key)
        return matches[0]
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        number = kind(text)
    except (ValueError, KeyError):
        raise SettingError(
            f"option {key}={value!r}: expected {'true or false' if kind is bool else kind.__name__}", setting=key
        ) from None
    if kind in (int, float) and number < 0:
        raise SettingError(f"option {key}={value!r}: must not be negative", setting=key)
    # NaN fails this comparison, too.
    if kind in (int, float) and not number <= declared.metadata["most"]:
        raise SettingError(f"option {key}={value!r}: must be at most {declared.metadata['most']}", setting=key)
    return number


def check_pattern(key: str, pattern: str) -> None:
    """Raise SettingError for the option `key` if `pattern` is not a regular expression."""
    try:
        compile_pattern(pattern, f"option {key}")
    except UserError as error:
        raise SettingError(error.message, setting=key) from error
