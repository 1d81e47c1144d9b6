"""`lakehouse ttl policy set | remove | list`: the TTL rules of a table, without Spark."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show_document
from lakehouse.cli.service_job import service_parser
from lakehouse.cli.table import open_table
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError, nearest
from lakehouse.spec.contracts.services import RemovedTtlRule, TtlRuleDocument, TtlRules

_VERBS = ("set", "remove", "list")


def policy_command(words: Sequence[str]) -> int:
    """Run `lakehouse ttl policy <verb> ...` and return the exit code."""
    verb = words[0] if words else ""
    if verb not in _VERBS:
        known = ", ".join(_VERBS)
        raise UserError(f"lakehouse ttl policy {verb!r} is unknown; verbs are {known}.{nearest(verb, _VERBS)}")
    return {"set": _set, "remove": _remove, "list": _list}[verb](words[1:])


def _set(words: Sequence[str]) -> int:
    parser = service_parser("ttl policy set")
    parser.add_argument("--pattern", required=True, help="partitions: a glob such as region=eu, or re: and a regex")
    parser.add_argument("--id", help="name of the rule; default the pattern")
    for name in ("partition", "creation", "modification"):
        parser.add_argument(f"--{name}-age", default="", metavar="400d", help="age at which they expire")
    parser.add_argument("--max-partitions", type=int, default=0, help="newest partitions kept beside each parent")
    parser.add_argument("--max-bytes", default="", metavar="5TB", help="newest partitions kept, up to this size")
    parser.add_argument("--format", default="", help="pattern of the time in paths, such as yyyy/MM/dd")
    parser.add_argument("--timezone", default="", help="time zone of those times; default UTC")
    parser.add_argument("--keep", action="store_true", help="set no limit: the partitions never expire")
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
    show_document(TtlRuleDocument(rule=rule), given.output)
    return 0


def _remove(words: Sequence[str]) -> int:
    parser = service_parser("ttl policy remove")
    parser.add_argument("--id", required=True, help="name of the rule; by default its pattern")
    table, given = _opened(parser, words)
    table.services.remove_ttl(given.id)
    show_document(RemovedTtlRule(removed=given.id), given.output)
    return 0


def _list(words: Sequence[str]) -> int:
    table, given = _opened(service_parser("ttl policy list"), words)
    rules = table.services.ttl_rules()
    mappings = [rule.to_mapping() for rule in rules]
    names = list(dict.fromkeys(name for mapping in mappings for name in mapping))
    rows = [{name: mapping.get(name) for name in names} for mapping in mappings]
    show_document(TtlRules(rules=tuple(rules)), given.output, rows=rows)
    return 0


def _opened(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[Table, argparse.Namespace]:
    given = parser.parse_args(words)
    return open_table(given.table, option_pairs(given.option)), given
