"""List the declared options: for messages, `lakehouse options` and the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from lakehouse.spec.options.policies import POLICIES, Policies
from lakehouse.spec.options.values import declared_options


def declarations() -> Iterator[dict[str, Any]]:
    """Yield key, default, type, text, choices, aliases and secret of every option, in the order of the policies."""
    defaults = Policies()
    for name in POLICIES:
        for declared, default in declared_options(getattr(defaults, name)):
            yield {**declared.metadata, "default": default, "type": type(default).__name__}


@cache
def declared_keys() -> frozenset[str]:
    """Return the keys of all options, aliases included."""
    return frozenset(key for declared in declarations() for key in (declared["key"], *declared["aliases"]))


def canonical_key(key: str) -> str:
    """Return the key under which an option is declared; `key` may be an alias."""
    return _aliases().get(key, key)


@cache
def _aliases() -> Mapping[str, str]:
    return {alias: declared["key"] for declared in declarations() for alias in declared["aliases"]}


def options_markdown() -> str:
    """Return the options table of the documentation."""
    rows = ["| option | default | meaning |", "| --- | --- | --- |"]
    for declared in declarations():
        choices = f" One of {', '.join(declared['choices'])}." if len(declared["choices"]) > 1 else ""
        rows.append(f"| `{declared['key']}` | {_default_text(declared['default'])} | {declared['text']}{choices} |")
    return "\n".join(rows)


def _default_text(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default != "" else "–"
