"""A small simulated day of the fleet scheduler against a DAG per service."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import pytest

from tests.support.fleet_model import Delay, Need, each_dag_for_itself, needs_of_a_day, one_fleet_scheduler

RUNS, TABLES, SLOTS = 1400, 200, 4


@pytest.fixture(scope="module")
def day() -> tuple[list[Need], list[Delay], list[Delay]]:
    needs = needs_of_a_day(RUNS, TABLES)
    return needs, each_dag_for_itself(needs, SLOTS, TABLES), one_fleet_scheduler(needs, SLOTS)


def late(delays: Sequence[Delay], service: str) -> int:
    """Return the number of runs that start more than half an hour after they are due."""
    return sum(delay.need.service == service and delay.seconds > 1800 for delay in delays)


def test_every_need_starts_once_and_not_before_it_is_due(day: tuple[list[Need], list[Delay], list[Delay]]) -> None:
    needs, alone, fleet = day
    for delays in (alone, fleet):
        assert sorted(id(delay.need) for delay in delays) == sorted(map(id, needs))
        assert all(delay.seconds >= 0 for delay in delays)


def test_fleet_scheduler_delays_fewer_runs_of_every_service(day: tuple[list[Need], list[Delay], list[Delay]]) -> None:
    _, alone, fleet = day
    for service in ("clean", "archive", "clustering"):
        assert late(fleet, service) * 4 < late(alone, service), service
    assert late(fleet, "compaction") <= late(alone, "compaction")
    assert statistics.median(d.seconds for d in fleet) < statistics.median(d.seconds for d in alone)


def test_important_tables_start_before_others_if_slots_are_scarce() -> None:
    needs = needs_of_a_day(4000, 200)
    delays = one_fleet_scheduler(needs, 1)
    important = statistics.median(d.seconds for d in delays if d.need.priority > 1)
    usual = statistics.median(d.seconds for d in delays if d.need.priority == 1)
    assert important < usual
