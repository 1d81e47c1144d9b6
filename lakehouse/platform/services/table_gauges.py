"""Evaluate time-based alarm rules on all tables, and emit the gauges of tables and alarms from stored states."""

from __future__ import annotations

from lakehouse.platform.alarms.judge import Judgement, judge_by_time
from lakehouse.platform.alarms.rules import AlarmRules, names_of
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.services.metrics import Metrics


def watch_tables(catalog: Catalog, rules: AlarmRules, measures: Metrics) -> Judgement:
    """Evaluate the rules whose values change without a commit, and record gauges; storage is not read.

    Each timed pass of the scheduler calls it, so that gauges are emitted even for tables without commits.
    """
    judged = judge_by_time(catalog, rules)
    measures.alarms(catalog.alarms.counts(), names_of(rules.rules))
    if measures.is_active:
        names = {table: watched.identifier for table, watched in catalog.alarms.tables().items()}
        states = catalog.states.of(names)
        measures.states({names[table]: state for table, state in states.items()}, catalog.clock.now_ms())
    return judged
