"""Edits of ttl rules, and the rules they make, as JSON objects of a table's policy log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.document import parse_json
from lakehouse.model.ttl import TtlRule


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlEdit:
    """One edit: a rule that is set, or the id of one that is removed. `at_ms` is when, in UTC milliseconds."""

    edit_id: str
    at_ms: int
    rule: TtlRule | None = None
    removed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlBase:
    """The rules after the edits up to number `up_to`, in the order in which they were set."""

    up_to: int = 0
    rules: tuple[TtlRule, ...] = ()


def apply_edit(rules: tuple[TtlRule, ...], edit: TtlEdit) -> tuple[TtlRule, ...]:
    """Return the rules after an edit: a rule that is set goes to the end, in place of the one with its id."""
    gone = edit.removed if edit.rule is None else edit.rule.id
    kept = tuple(rule for rule in rules if rule.id != gone)
    return kept if edit.rule is None else (*kept, edit.rule)


def encode_edit(edit: TtlEdit) -> bytes:
    """Return the object of one edit; its id makes it differ from all others."""
    what = {"remove": edit.removed} if edit.rule is None else {"set": edit.rule.to_mapping()}
    return json.dumps({"id": edit.edit_id, "at_ms": edit.at_ms, **what}, ensure_ascii=False).encode()


def decode_edit(data: bytes, path: str) -> TtlEdit:
    """Return the edit in the object at `path`; raise CorruptTableError naming it if there is none."""
    found = _mapping(data, path)
    try:
        edit_id, at_ms = str(found["id"]), int(found["at_ms"])
        if "set" in found:
            return TtlEdit(edit_id=edit_id, at_ms=at_ms, rule=TtlRule.from_mapping(found["set"]))
        return TtlEdit(edit_id=edit_id, at_ms=at_ms, removed=str(found["remove"]))
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise _corrupt(path, error) from error


def encode_base(base: TtlBase, fresh_id: str) -> bytes:
    """Return the base object; `fresh_id` makes it differ from that of any other folder."""
    rules = [rule.to_mapping() for rule in base.rules]
    return json.dumps({"id": fresh_id, "up_to": base.up_to, "rules": rules}, ensure_ascii=False).encode()


def decode_base(data: bytes, path: str) -> TtlBase:
    """Return the base in the object at `path`; raise CorruptTableError naming it if there is none."""
    found = _mapping(data, path)
    try:
        return TtlBase(up_to=int(found["up_to"]), rules=tuple(map(TtlRule.from_mapping, found["rules"])))
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise _corrupt(path, error) from error


def _mapping(data: bytes, path: str) -> Mapping[str, Any]:
    try:
        found = parse_json(data)
    except ValueError as error:
        raise _corrupt(path, error) from error
    if not isinstance(found, dict):
        raise _corrupt(path, TypeError(f"{type(found).__name__} instead of an object"))
    return found


def _corrupt(path: str, error: Exception) -> CorruptTableError:
    return CorruptTableError(f"{path} holds no ttl rules that this release reads: {error}", path=path)
