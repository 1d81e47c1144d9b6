"""Files of the TTL policy log: edits of TTL rules and the resulting rules, as JSON."""

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
    """One edit: the rule to set, or the id of the rule to remove, and the time `at_ms` in UTC milliseconds."""

    edit_id: str
    at_ms: int
    rule: TtlRule | None = None
    removed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlBase:
    """The rules after all edits up to the number `up_to`, in the order in which they were set."""

    up_to: int = 0
    rules: tuple[TtlRule, ...] = ()


def apply_edit(rules: tuple[TtlRule, ...], edit: TtlEdit) -> tuple[TtlRule, ...]:
    """Return the rules after an edit: a new rule is appended, and an old rule with its id is removed."""
    gone = edit.removed if edit.rule is None else edit.rule.id
    others = tuple(rule for rule in rules if rule.id != gone)
    return others if edit.rule is None else (*others, edit.rule)


def encode_edit(edit: TtlEdit) -> bytes:
    """Encode an edit; its id makes the bytes different from those of any other edit."""
    what = {"remove": edit.removed} if edit.rule is None else {"set": edit.rule.to_mapping()}
    return json.dumps({"id": edit.edit_id, "at_ms": edit.at_ms, **what}, ensure_ascii=False).encode()


def decode_edit(data: bytes, path: str) -> TtlEdit:
    """Decode the edit in the file at `path`; raise CorruptTableError with the path if it is invalid."""
    document = _mapping(data, path)
    try:
        edit_id, at_ms = str(document["id"]), int(document["at_ms"])
        if "set" in document:
            return TtlEdit(edit_id=edit_id, at_ms=at_ms, rule=TtlRule.from_mapping(document["set"]))
        return TtlEdit(edit_id=edit_id, at_ms=at_ms, removed=str(document["remove"]))
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise _corrupt(path, error) from error


def encode_base(base: TtlBase, fresh_id: str) -> bytes:
    """Encode the base; `fresh_id` makes the bytes different from those of any other writer."""
    rules = [rule.to_mapping() for rule in base.rules]
    return json.dumps({"id": fresh_id, "up_to": base.up_to, "rules": rules}, ensure_ascii=False).encode()


def decode_base(data: bytes, path: str) -> TtlBase:
    """Decode the base in the file at `path`; raise CorruptTableError with the path if it is invalid."""
    document = _mapping(data, path)
    try:
        return TtlBase(up_to=int(document["up_to"]), rules=tuple(map(TtlRule.from_mapping, document["rules"])))
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise _corrupt(path, error) from error


def _mapping(data: bytes, path: str) -> Mapping[str, Any]:
    try:
        document = parse_json(data)
    except ValueError as error:
        raise _corrupt(path, error) from error
    if not isinstance(document, dict):
        raise _corrupt(path, TypeError(f"{type(document).__name__} instead of an object"))
    return document


def _corrupt(path: str, error: Exception) -> CorruptTableError:
    return CorruptTableError(f"{path} has no TTL rules that this release can read: {error}", path=path)
