"""`lakehouse ttl policy set | remove | list`: the TTL rules of a table, without Spark."""

from __future__ import annotations

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import open_table
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.spec.contracts.services import RemovedTtlRule, TtlRuleDocument, TtlRules


def set_rule(given: Given) -> None:
    """Set one rule."""
    limits = {
        "partition_age": given.partition_age,
        "creation_age": given.creation_age,
        "modification_age": given.modification_age,
        "max_partitions": given.max_partitions,
        "max_bytes": given.max_bytes,
    }
    if given.keep is any(limits.values()):
        raise UserError("lakehouse ttl policy set needs a limit, such as --partition-age 400d, or --keep, and not both")
    services = _table(given).services
    rule = services.set_ttl(given.pattern, rule_id=given.id, format=given.format, timezone=given.timezone, **limits)
    show_document(TtlRuleDocument(rule=rule), given.output)


def remove_rule(given: Given) -> None:
    """Remove one rule."""
    _table(given).services.remove_ttl(given.id)
    show_document(RemovedTtlRule(removed=given.id), given.output)


def list_rules(given: Given) -> None:
    """Print the rules of a table."""
    rules = _table(given).services.ttl_rules()
    mappings = [rule.to_mapping() for rule in rules]
    names = list(dict.fromkeys(name for mapping in mappings for name in mapping))
    rows = [{name: mapping.get(name) for name in names} for mapping in mappings]
    show_document(TtlRules(rules=tuple(rules)), given.output, rows=rows)


def _table(given: Given) -> Table:
    return open_table(given.table, given.option)
