"""Measures of alarm rules: one pure function per measure, from the facts about a table to values.

A measure returns one value per subject, such as a service, and no value if it is unknown. To add a measure, write a
function here and add it to `MEASURES`. Each number of `TableNumbers` whose unit is bytes or a count is a measure, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import partial
from itertools import takewhile
from types import MappingProxyType

from lakehouse.model.display import count_text
from lakehouse.platform.alarms.facts import TableFacts
from lakehouse.platform.alarms.rules import AlarmRule, Unit
from lakehouse.platform.catalog.run_history import Run, RunState
from lakehouse.spec.contracts.fleet import TableNumbers

_HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One value of a measure. `subject` is the measured part of the table, such as a service."""

    value: float
    subject: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A declared measure, described by the sentence `text`.

    `least` describes the items that the key `least` of a rule counts; empty if the key has no effect.

    Attributes:
        unit: Unit of its values.
        read: Function that yields the values of a table.
        by_time: Whether the value changes without a commit, so that it is evaluated for all tables.
        uses_window: Whether the key `window` of a rule changes it.
        reads_runs: Whether it reads the history of runs.
    """

    unit: Unit
    text: str
    read: Callable[[TableFacts, AlarmRule], Iterator[Measured]]
    by_time: bool = False
    uses_window: bool = False
    reads_runs: bool = False
    least: str = ""


def _freshness(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    del rule
    if facts.numbers.last_commit_ms is not None:
        yield Measured(value=max(0, facts.now_ms - facts.numbers.last_commit_ms) / 1000)


def _small_files(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    # Each file group has at most one current base file, and only base files are small files.
    numbers = facts.numbers
    files, small, partitions = numbers.file_groups, numbers.small_files, numbers.partitions
    if files and small is not None and files >= rule.least:
        # Files in different partitions cannot be merged, so one small file per partition remains.
        excess = max(0, small - (partitions or 0))
        where = f", in {count_text(partitions, 'partition')}" if partitions else ""
        yield Measured(value=excess / files, detail=f"{small:,} of {files:,} files are small{where}")


def _log_growth(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    now, before = facts.numbers.log_bytes, facts.earlier(rule.window_s)
    if now is not None and before is not None and before.log_bytes is not None and now >= rule.least:
        yield Measured(value=now - before.log_bytes, detail=f"{Unit.SIZE.text(now)} of log files wait")


def _metadata_growth(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    now, before = facts.numbers.metadata_bytes, facts.earlier(rule.window_s)
    if now is not None and before is not None and before.metadata_bytes and now >= rule.least:
        yield Measured(value=now / before.metadata_bytes - 1, detail=f"it has {Unit.SIZE.text(now)}")


def _failed_tries(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    del rule
    for service, runs in facts.runs.items():
        failed = [run for run in _since_success(runs) if run.failed_tries]
        if failed:
            count = sum(run.failed_tries for run in failed)
            yield Measured(value=count, subject=service, detail=failed[0].failure)


def _permanent_failures(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    del rule
    for service, runs in facts.runs.items():
        failed = [run for run in _since_success(runs) if run.failed_tries and run.permanent]
        if failed:
            yield Measured(value=len(failed), subject=service, detail=failed[0].failure)


def _waiting(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    del rule
    for service, runs in facts.runs.items():
        waiting = [run for run in _since_success(runs) if run.waiting_since_ms is not None]
        if waiting:
            since = min(run.waiting_since_ms for run in waiting if run.waiting_since_ms is not None)
            yield Measured(value=max(0, facts.now_ms - since) / 1000, subject=service, detail=waiting[0].failure)


def _died_runs(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    for service, runs in facts.runs.items():
        died = [run for run in _since_success(_recent(facts, rule, runs)) if run.state is RunState.DIED]
        if died:
            yield Measured(value=len(died), subject=service, detail=died[0].run_id)


def _expired_leases(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    del rule
    for service, expired_ms in facts.expired_leases.items():
        yield Measured(value=max(0, facts.now_ms - expired_ms) / 1000, subject=service)


def _conflicts(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    for service, runs in facts.runs.items():
        count = sum(int(run.actual.get("conflicts") or 0) for run in _recent(facts, rule, runs))
        if count:
            hours = rule.window_s / _HOUR_S
            yield Measured(value=count / hours, subject=service, detail=f"{count:,} conflicts")


def _bad_records(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    for service, runs in facts.runs.items():
        recent = [run for run in _recent(facts, rule, runs) if run.state is RunState.COMMITTED]
        bad = sum(int(run.actual.get("bad_records") or 0) for run in recent)
        records = bad + sum(int(run.actual.get("rows") or 0) for run in recent)
        if bad and records >= rule.least:
            yield Measured(value=bad / records, subject=service, detail=f"{bad:,} of {records:,} records")


def _publication_delay(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    del rule
    if facts.numbers.unpublished_since_ms is not None:
        yield Measured(value=max(0, facts.now_ms - facts.numbers.unpublished_since_ms) / 1000)


def _unreadable(facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    del rule
    if facts.error is not None:
        yield Measured(value=1, detail=facts.error)
    for service, error in facts.service_errors.items():
        yield Measured(value=1, subject=service, detail=f"the service {service} {error}")


def _number(name: str, facts: TableFacts, rule: AlarmRule) -> Iterator[Measured]:
    value = getattr(facts.numbers, name)
    if value is not None and value >= rule.least:
        yield Measured(value=float(value))


def _since_success(runs: tuple[Run, ...]) -> list[Run]:
    """Return the runs after the last success; `runs` is newest first."""
    successes = (RunState.COMMITTED, RunState.NOTHING_TO_DO)
    return list(takewhile(lambda run: run.state not in successes, runs))


def _recent(facts: TableFacts, rule: AlarmRule, runs: tuple[Run, ...]) -> tuple[Run, ...]:
    since = facts.now_ms - rule.window_s * 1000
    return tuple(run for run in runs if (run.ended_ms or run.started_ms) >= since)


def _of_numbers() -> dict[str, Measure]:
    """Return a measure for each table number that is a size or a count."""
    names = [field.name for field in fields(TableNumbers) if not field.name.endswith("_ms")]
    return {
        name: Measure(
            unit=Unit.SIZE if name.endswith("_bytes") else Unit.COUNT,
            text=f"The number `{name}` of the table.",
            read=partial(_number, name),
            least="the number",
        )
        for name in names
    }


#: All measures by name, in the order of the documentation.
MEASURES: Mapping[str, Measure] = MappingProxyType(
    {
        "freshness_lag": Measure(
            unit=Unit.DURATION, text="Time since the newest commit of a write.", read=_freshness, by_time=True
        ),
        "log_growth": Measure(
            unit=Unit.SIZE,
            text="Growth of the log files that wait for compaction, within the window.",
            read=_log_growth,
            uses_window=True,
            least="bytes of log files",
        ),
        "small_file_ratio": Measure(
            unit=Unit.RATIO,
            text="Share of file groups with small base files that could be merged; one small file per partition is "
            "not counted.",
            read=_small_files,
            least="file groups",
        ),
        "failed_tries": Measure(
            unit=Unit.COUNT,
            text="Failed tries of a service since its last success. Tries that only waited do not count.",
            read=_failed_tries,
            reads_runs=True,
            by_time=True,
        ),
        "permanent_failures": Measure(
            unit=Unit.COUNT,
            text="Runs of a service since its last success whose error another try does not resolve.",
            read=_permanent_failures,
            reads_runs=True,
            by_time=True,
        ),
        "waiting": Measure(
            unit=Unit.DURATION,
            text="Time for which a run of a service has been waiting for its input, or for another run.",
            read=_waiting,
            reads_runs=True,
            by_time=True,
        ),
        "died_runs": Measure(
            unit=Unit.COUNT,
            text="Runs of a service within the window that ended without a report, since its last success.",
            read=_died_runs,
            reads_runs=True,
            by_time=True,
            uses_window=True,
        ),
        "expired_lease": Measure(
            unit=Unit.DURATION,
            text="Time since a lease expired that its run neither renewed nor released.",
            read=_expired_leases,
            by_time=True,
        ),
        "conflicts_per_hour": Measure(
            unit=Unit.COUNT,
            text="Retries of the runs of a service after conflicts, per hour of the window.",
            read=_conflicts,
            reads_runs=True,
            uses_window=True,
        ),
        "publication_delay": Measure(
            unit=Unit.DURATION,
            text="Time since the oldest unpublished partition of a publication was ready.",
            read=_publication_delay,
            by_time=True,
        ),
        "bad_record_ratio": Measure(
            unit=Unit.RATIO,
            text="Share of bad records among the records that were ingested within the window.",
            read=_bad_records,
            reads_runs=True,
            uses_window=True,
            least="records",
        ),
        "metadata_growth": Measure(
            unit=Unit.RATIO,
            text="Growth of the metadata table within the window, relative to its size before.",
            read=_metadata_growth,
            uses_window=True,
            least="bytes of the metadata table",
        ),
        "unreadable": Measure(unit=Unit.FLAG, text="Whether the table cannot be read.", read=_unreadable),
        **_of_numbers(),
    }
)
