"""Lists the declared options. Messages, `lakehouse options` and the documentation use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field
from functools import cache
from typing import Any

from lakehouse.spec.options.creation import CREATE_DECLARATIONS
from lakehouse.spec.options.policies import POLICIES, Policies
from lakehouse.spec.options.values import declared_options

#: The policies that only table services use, except for some options that writes use.
_SERVICES = ("compaction", "archive", "clean", "ttl", "sync", "orphans", "validation", "clustering")
_OF_WRITES = frozenset({"hoodie.clustering.updates.strategy"})
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "text"}


def declarations() -> Iterator[dict[str, Any]]:
    """Yield key, default, type, description, choices, aliases and secrecy of every option, in policy order."""
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


def service_of(key: str) -> str:
    """Return the service whose runs alone use an option, or an empty string if writes or reads use it, too."""
    return _services().get(canonical_key(key), "")


@cache
def _services() -> Mapping[str, str]:
    defaults = Policies()
    return {
        declared.metadata["key"]: name.replace("_", " ")
        for name in _SERVICES
        for declared, _ in declared_options(getattr(defaults, name))
        if declared.metadata["key"] not in _OF_WRITES
    }


@cache
def _aliases() -> Mapping[str, str]:
    return {alias: declared["key"] for declared in declarations() for alias in declared["aliases"]}


def options_markdown() -> str:
    """Return the option tables for the documentation, one per policy."""
    defaults = Policies()
    parts = []
    for name, policy in POLICIES.items():
        rows = [_row(declared, default) for declared, default in declared_options(getattr(defaults, name))]
        parts.append(_section(name, str(policy.__doc__), rows))
    fixed = [f"| `{option.key}` | – | – | {option.default} | {option.text} |" for option in CREATE_DECLARATIONS]
    return "\n\n".join((*parts, _section("table", "What is fixed when a table is created.", fixed)))


def _section(name: str, text: str, rows: list[str]) -> str:
    title = name.replace("_", " ").capitalize()
    heads = ["| option | setting | type | default | meaning |", "| --- | --- | --- | --- | --- |"]
    return "\n".join((f"## {title}", "", " ".join(text.split("\n\n", maxsplit=1)[0].split()), "", *heads, *rows))


def _row(declared: Field[Any], default: Any) -> str:
    metadata = declared.metadata
    choices = f" One of {', '.join(metadata['choices'])}." if len(metadata["choices"]) > 1 else ""
    aliases = f" Also: {', '.join(f'`{key}`' for key in metadata['aliases'])}." if metadata["aliases"] else ""
    secret = " Never shown or stored." if metadata["secret"] else ""
    kind = _TYPES[type(default)]
    text = f"{metadata['text']}{choices}{aliases}{secret}".replace("|", "\\|")
    return f"| `{metadata['key']}` | `{declared.name}` | {kind} | {_default_text(default)} | {text} |"


def _default_text(default: Any) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return str(default) if default != "" else "–"
