"""`lakehouse ttl due | plan | run | policy set | policy remove | policy list`; all of them without Spark.

`run` is a job; `run --dry-run` is none and prints the plan.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show
from lakehouse.cli.service_job import run_service_job, service_parser
from lakehouse.cli.table import open_table
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError, nearest
from lakehouse.model.ttl import Expiry, TtlPlan

_VERBS = ("due", "plan", "run", "policy")
_EDITS = ("set", "remove", "list")
_DRY_RUN = "--dry-run"


def ttl_command(words: Sequence[str]) -> int:
    """Run one command of this room."""
    verb = words[1] if len(words) > 1 else ""
    if verb not in _VERBS:
        raise UserError(f"lakehouse ttl {verb!r} is unknown; verbs are {', '.join(_VERBS)}.{nearest(verb, _VERBS)}")
    if verb == "policy":
        return _policy(words[2:])
    if verb == "run" and _DRY_RUN not in words:
        return run_service_job(words)
    return _due(words[2:]) if verb == "due" else _plan(words[2:])


def _due(words: Sequence[str]) -> int:
    table, given = _opened(_parser("ttl due"), words)
    show(asdict(table.services.ttl.due(pinned=given.pin)), given.output)
    return 0


def _plan(words: Sequence[str]) -> int:
    parser = _parser("ttl plan")
    parser.add_argument(_DRY_RUN, action="store_true", help="print what would expire; so it is, a plan is not kept")
    parser.add_argument("--force", action="store_true", help="list the table instead of trusting its statistics")
    table, given = _opened(parser, words)
    plan = table.services.ttl.plan(pinned=given.pin, force=given.force)
    assert isinstance(plan, TtlPlan), "ttl always answers with a plan"
    show(_shown(plan), given.output)
    return 0


def _shown(plan: TtlPlan) -> dict[str, Any]:
    return {
        "would expire": len(plan.expired),
        "bytes": sum(expiry.size_bytes for expiry in plan.expired),
        "without a time": plan.untimed,
        "partitions": [_row(expiry) for expiry in plan.expired],
        "kept": [_row(expiry) for expiry in plan.kept],
    }


def _row(expiry: Expiry) -> dict[str, Any]:
    return {
        "partition": expiry.partition,
        "rule": expiry.rule,
        "bytes": expiry.size_bytes,
        "rows": expiry.rows,
        "files": expiry.files,
        "why": expiry.reason,
    }


def _policy(words: Sequence[str]) -> int:
    edit = words[0] if words else ""
    if edit not in _EDITS:
        raise UserError(f"lakehouse ttl policy {edit!r} is unknown; it is {', '.join(_EDITS)}.{nearest(edit, _EDITS)}")
    return {"set": _set, "remove": _remove, "list": _list}[edit](words[1:])


def _set(words: Sequence[str]) -> int:
    parser = _parser("ttl policy set", pins=False)
    parser.add_argument("--pattern", required=True, help="partitions: a glob such as region=eu, or re: and a regex")
    parser.add_argument("--id", help="name of the rule; default the pattern")
    for name in ("partition", "creation", "modification"):
        parser.add_argument(f"--{name}-age", default="", metavar="400d", help="age at which they expire")
    parser.add_argument("--max-partitions", type=int, default=0, help="newest partitions kept beside each parent")
    parser.add_argument("--max-bytes", default="", metavar="5TB", help="newest partitions kept, up to this size")
    parser.add_argument("--format", default="", help="pattern of the time in paths, such as yyyy/MM/dd")
    parser.add_argument("--timezone", default="", help="time zone of those times; default UTC")
    parser.add_argument("--keep", action="store_true", help="no limit: they never expire")
    table, given = _opened(parser, words)
    limits = {
        "partition_age": given.partition_age,
        "creation_age": given.creation_age,
        "modification_age": given.modification_age,
        "max_partitions": given.max_partitions,
        "max_bytes": given.max_bytes,
    }
    if given.keep is any(limits.values()):
        raise UserError("lakehouse ttl policy set needs a limit, such as --partition-age 400d, or --keep, and not both")
    services = table.services
    rule = services.set_ttl(given.pattern, rule_id=given.id, format=given.format, timezone=given.timezone, **limits)
    show(rule.to_mapping(), given.output)
    return 0


def _remove(words: Sequence[str]) -> int:
    parser = _parser("ttl policy remove", pins=False)
    parser.add_argument("--id", required=True, help="name of the rule; its pattern, unless it was given another one")
    table, given = _opened(parser, words)
    table.services.remove_ttl(given.id)
    show({"removed": given.id}, given.output)
    return 0


def _list(words: Sequence[str]) -> int:
    table, given = _opened(_parser("ttl policy list", pins=False), words)
    rules = [rule.to_mapping() for rule in table.services.ttl_rules()]
    names = list(dict.fromkeys(name for rule in rules for name in rule))
    show(rules if given.output == "json" else [{n: rule.get(n) for n in names} for rule in rules], given.output)
    return 0


def _opened(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[Table, argparse.Namespace]:
    given = parser.parse_args(words)
    return open_table(given.table, option_pairs(given.option)), given


def _parser(command: str, *, pins: bool = True) -> argparse.ArgumentParser:
    parser = service_parser(command)
    if pins:
        parser.add_argument("--pin", action="append", default=[], metavar="PARTITION", help="keep it and what is below")
    return parser
