"""Compare two versions of a spec, setting by setting. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.spec.secrets import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecChange:
    """A changed setting: its dotted path, and its values before and after. A value is None if it is not declared."""

    setting: str
    before: Any
    after: Any

    def __str__(self) -> str:
        before, after = redact(self.before, self.setting), redact(self.after, self.setting)
        return f"{self.setting}: {_text(before)} -> {_text(after)}"


def spec_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[SpecChange, ...]:
    """Return the settings that differ between two documents, such as `services.clean.commits_retained: 10 -> 5`.

    A mapping with a different order of entries is one change, because the order of columns and patterns matters.
    """
    return tuple(_changes("", before, after))


def changes_text(changes: Sequence[SpecChange], limit: int = 5) -> str:
    """Return the changes as one line, with the first `limit` changes in full."""
    more = f" and {len(changes) - limit} more" if len(changes) > limit else ""
    return ", ".join(map(str, changes[:limit])) + more


def _changes(path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[SpecChange]:
    lead = f"{path}." if path else ""
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(f"{lead}{name}", old, new)
        elif old != new:
            yield SpecChange(setting=f"{lead}{name}", before=old, after=new)
    if path and set(before) == set(after) and list(before) != list(after):
        yield SpecChange(setting=f"{path} (order)", before=list(before), after=list(after))


def _text(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False, default=str)
