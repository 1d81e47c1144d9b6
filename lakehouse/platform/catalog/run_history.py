"""History of services: requests of users, decisions of the scheduler, and runs with their outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, delete, func, insert, select, update
from sqlalchemy.orm import InstrumentedAttribute

from lakehouse.core.system.clock import Clock
from lakehouse.model.display import Readable, Shown
from lakehouse.model.texts import printable, text_list
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.models import DecisionRow, RequestRow, RunRow, TableRow
from lakehouse.platform.catalog.state_rows import mark_changed
from lakehouse.spec.secrets import redact_text

_KEPT_DECISIONS = 50
_AFTER = "after"
LEASE_EXPIRED = "it ended without a report, and its lease expired"
#: Maximum number of values in one statement; databases accept some ten thousands.
_BATCH = 5000


class RunState(StrEnum):
    """State of a run. The lease of a run that died expired before it reported an outcome."""

    #: A process executes the run, or its next try will.
    RUNNING = "running"
    #: The run committed.
    COMMITTED = "committed"
    #: The run had nothing to commit.
    NOTHING_TO_DO = "nothing_to_do"
    #: The last try of the run failed; a later try continues the run.
    FAILED = "failed"
    #: The run waits for its input, or for another run on its table; a later try continues it.
    WAITING = "waiting"
    #: The lease of the run expired before it reported an outcome.
    DIED = "died"


#: States of runs that alarms may report; a running run may be a retry after a failure.
_NOT_WELL = (RunState.FAILED, RunState.DIED, RunState.WAITING, RunState.RUNNING)


class RequestState(StrEnum):
    """State of a request: open, taken by a run, done."""

    #: No run has taken the request.
    OPEN = "open"
    #: A run executes the request.
    TAKEN = "taken"
    #: A run has executed the request.
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Readable):
    """Whether a service is due on a table, whether the scheduler starts it now, and why.

    `inputs` are the numbers of the decision. `predicted` are cost and benefit of a run: files, bytes, seconds, benefit.
    `deadline_ms` is the latest time at which the service should run. `code` is a DecisionReason; empty for decisions of
    earlier versions.
    """

    due: bool
    chosen: bool
    reason: str
    priority: float = 0.0
    deadline_ms: int | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    predicted: Mapping[str, Any] = field(default_factory=dict)
    decided_ms: int = 0
    code: str = ""

    def _shown(self) -> Shown:
        state = "due and chosen" if self.due and self.chosen else "due, not chosen" if self.due else "not due"
        facts = {"due": self.due, "chosen": self.chosen, "reason": self.reason, "priority": self.priority}
        return Shown(f"decision: {state}: {self.reason}", {**facts, "inputs": self.inputs, "predicted": self.predicted})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(Readable):
    """A user's request to run a service, due or not."""

    id: int
    service: str
    parameters: Mapping[str, Any]
    requested_by: str
    requested_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Readable):
    """One run of a service on a table; `actual` has the same keys as `predicted`. Times are UTC milliseconds.

    Until the run succeeds, `after` is the newest completion time on the table's timeline when its first try began. A
    run that found nothing to do on the whole table keeps the value from its last try.

    Attributes:
        tries: Tries of the run, except tries that only waited; at least 1.
        failed_tries: Failures since the last success of the run.
        failure: The message of the last failure or wait, even while a later try is active.
        permanent: Whether another try does not resolve that failure.
        waiting_since_ms: Time since which the run waits; None if it does not.
    """

    run_id: str
    service: str
    state: RunState
    tries: int
    started_ms: int
    ended_ms: int | None
    instant: str | None
    predicted: Mapping[str, Any]
    actual: Mapping[str, Any]
    error: str | None
    after: str | None = None
    failed_tries: int = 0
    failure: str = ""
    permanent: bool = False
    waiting_since_ms: int | None = None

    def _shown(self) -> Shown:
        instant = f", instant {self.instant}" if self.instant else ""
        facts = {"run": self.run_id, "state": self.state, "tries": self.tries, "error": self.error}
        return Shown(f"run of {self.service}: {self.state}{instant}{f', {self.error}' if self.error else ''}", facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun:
    """A run without an outcome: it is active, or its process has crashed. `seconds` is its predicted duration."""

    table_id: int
    service: str
    started_ms: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The end of a run: its state, and its commit or the reason of its failure.

    `actual` contains the numbers of the run; None keeps the recorded numbers. `seen` is the newest completion time on
    the timeline of a table on which the run found nothing to do. `permanent` is true if another try does not resolve
    the error. `wait_for_s` is the maximum time to wait; a run that has waited longer has failed permanently.
    """

    state: RunState
    instant: str | None = None
    actual: Mapping[str, Any] | None = None
    error: str | None = None
    seen: str | None = None
    permanent: bool = False
    wait_for_s: float | None = None


class RunHistory:
    """Requests, decisions and runs of one catalog."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    def request(
        self, table_id: int, service: str, parameters: Mapping[str, Any] | None = None, *, requested_by: str = ""
    ) -> int:
        """Record a request to run a service; return its id."""
        with self._database.session() as session:
            row = RequestRow(
                table_id=table_id,
                service=service,
                parameters=dict(parameters or {}),
                requested_by=requested_by,
                requested_ms=self._clock.now_ms(),
                state=RequestState.OPEN,
            )
            session.add(row)
            session.flush()
            mark_changed(session, [table_id], self._clock.now_ms())
            return row.id

    def open_requests(self, table_id: int, service: str) -> tuple[Request, ...]:
        """Return the open requests, oldest first."""
        return self._requests(table_id=table_id, service=service, state=RequestState.OPEN)

    def taken_requests(self, run_id: str, table_id: int, service: str) -> tuple[Request, ...]:
        """Return the requests that a run has taken and not completed, oldest first."""
        return self._requests(run_id=run_id, table_id=table_id, service=service, state=RequestState.TAKEN)

    def _requests(self, **conditions: Any) -> tuple[Request, ...]:
        query = select(RequestRow).filter_by(**conditions)
        with self._database.session() as session:
            return tuple(
                Request(
                    id=row.id,
                    service=row.service,
                    parameters=dict(row.parameters),
                    requested_by=row.requested_by,
                    requested_ms=row.requested_ms,
                )
                for row in session.scalars(query.order_by(RequestRow.id))
            )

    def requested_services(self, services: str | Collection[str]) -> frozenset[tuple[int, str]]:
        """Return (table id, service) of all open requests."""
        query = select(RequestRow.table_id, RequestRow.service).where(
            RequestRow.state == RequestState.OPEN, RequestRow.service.in_(text_list(services, "services"))
        )
        with self._database.session() as session:
            return frozenset((table, service) for table, service in session.execute(query.distinct()))

    def decide(self, decisions: Mapping[tuple[int, str], Decision]) -> None:
        """Record decisions by (table id, service) in one transaction, and delete old decisions of these tables.

        Decisions on a table that has been dropped since are not recorded.
        """
        now = self._clock.now_ms()
        tables = sorted({table for table, _ in decisions})
        with self._database.session() as session:
            # Lock the tables against a drop, in a fixed order so that two schedulers do not deadlock.
            held = select(TableRow.id).where(_among(TableRow.id, tables)).order_by(TableRow.id)
            table_ids = set(session.scalars(held.with_for_update(read=True, key_share=True)))
            rows = [
                _decision_row(table, service, now, decision)
                for (table, service), decision in decisions.items()
                if table in table_ids
            ]
            if rows:
                session.execute(insert(DecisionRow), rows)
            age = func.row_number().over(
                partition_by=(DecisionRow.table_id, DecisionRow.service), order_by=DecisionRow.id.desc()
            )
            services = sorted({service for _, service in decisions})
            mine = _among(DecisionRow.table_id, tables) & DecisionRow.service.in_(services)
            aged = select(DecisionRow.id, age.label("age")).where(mine).subquery()
            old = list(session.scalars(select(aged.c.id).where(aged.c.age > _KEPT_DECISIONS)))
            for start in range(0, len(old), _BATCH):
                session.execute(delete(DecisionRow).where(DecisionRow.id.in_(old[start : start + _BATCH])))

    def due_since(self, tables: Collection[int]) -> dict[tuple[int, str], tuple[int, ...]]:
        """Return the times of the last consecutive "due" decisions, by (table id, service).

        Times are UTC milliseconds, newest first.
        """
        query = select(DecisionRow.table_id, DecisionRow.service, DecisionRow.due, DecisionRow.decided_ms)
        decision_times: dict[tuple[int, str], list[int]] = {}
        ended = set()
        with self._database.session() as session:
            rows = session.execute(query.where(_among(DecisionRow.table_id, tables)).order_by(DecisionRow.id.desc()))
            for table, service, due, decided_ms in rows:
                if not due:
                    ended.add((table, service))
                elif (table, service) not in ended:
                    decision_times.setdefault((table, service), []).append(decided_ms)
        return {key: tuple(times) for key, times in decision_times.items()}

    def decisions(self, table_id: int, service: str, *, limit: int = 1) -> tuple[Decision, ...]:
        """Return the newest decisions, newest first."""
        query = select(DecisionRow).filter_by(table_id=table_id, service=service).order_by(DecisionRow.id.desc())
        with self._database.session() as session:
            return tuple(_decision(row) for row in session.scalars(query.limit(limit)))

    def start(self, run_id: str, table_id: int, service: str, predicted: Mapping[str, Any] | None = None) -> int:
        """Record the start of a try, assign the open requests to it, and return the number of the try."""
        with self._database.session() as session:
            query = select(RunRow).filter_by(run_id=run_id, table_id=table_id, service=service)
            row = session.scalar(query.with_for_update())
            if row is None:
                row = RunRow(run_id=run_id, table_id=table_id, service=service, tries=0, actual={}, predicted={})
                session.add(row)
            row.tries += 1
            row.state, row.started_ms, row.ended_ms = RunState.RUNNING, self._clock.now_ms(), None
            row.predicted = dict(predicted or {})
            mine = update(RequestRow).where(RequestRow.table_id == table_id, RequestRow.service == service)
            session.execute(
                mine.where(RequestRow.state == RequestState.OPEN).values(state=RequestState.TAKEN, run_id=run_id)
            )
            return row.tries

    def began_after(self, run_id: str, table_id: int, service: str, completion: str) -> None:
        """Record the newest completion time on the timeline before a run, so that a retry finds later commits."""
        with self._database.session() as session:
            session.execute(update(RunRow).where(_is(run_id, table_id, service)).values(actual={_AFTER: completion}))

    def end(
        self,
        run_id: str,
        table_id: int,
        service: str,
        outcome: RunOutcome,
        *,
        try_number: int | None = None,
    ) -> None:
        """Record the outcome of a run.

        The requests of a failed or waiting run become open again; the requests of other runs are done. A try that was
        overtaken by a later one is recorded only if it committed, because one commit makes the whole run successful.

        Args:
            run_id: id of the run. table_id: id of the table. service: name of the service. outcome: the outcome.
                try_number: number of the try that reports; None means the current try.
        """
        is_unfinished = outcome.state in (RunState.FAILED, RunState.WAITING)
        request_state = RequestState.OPEN if is_unfinished else RequestState.DONE
        with self._database.session() as session:
            row = session.scalar(select(RunRow).where(_is(run_id, table_id, service)).with_for_update())
            if row is None:
                return
            is_stale, has_committed = try_number not in (None, row.tries), row.state == RunState.COMMITTED
            if outcome.state is RunState.NOTHING_TO_DO and row.instant is not None:
                # An earlier try committed after this try had read the run.
                outcome = replace(outcome, state=RunState.COMMITTED, actual=None)
            commits = outcome.state is RunState.COMMITTED
            if (is_stale or has_committed) and (not commits or (is_stale and has_committed)):
                return
            marks = {_AFTER: row.actual[_AFTER]} if is_unfinished and _AFTER in row.actual else {}
            if outcome.state is RunState.NOTHING_TO_DO and outcome.seen is not None:
                marks = {_AFTER: outcome.seen}
            before = {name: value for name, value in row.actual.items() if name != _AFTER}
            row.actual = {**marks, **(before if outcome.actual is None else outcome.actual)}
            _record_problem(row, outcome, self._clock.now_ms())
            row.instant = outcome.instant or row.instant
            session.execute(
                update(RequestRow)
                .where(RequestRow.table_id == table_id, RequestRow.service == service, RequestRow.run_id == run_id)
                .values(state=request_state, run_id=None if request_state is RequestState.OPEN else run_id)
            )
            mark_changed(session, [table_id], self._clock.now_ms())

    def end_expired_runs(self, table_id: int, service: str, *, active_run: str | None, before_ms: int) -> None:
        """Record that runs without a lease died, and reopen their requests.

        A run that was only suspended still records its outcome when it resumes.

        Args:
            table_id: id of the table.
            service: name of the service.
            active_run: id of the run that holds the lease; it is not changed.
            before_ms: only runs that started until this time, in UTC milliseconds.
        """
        running = (RunRow.table_id == table_id) & (RunRow.service == service) & (RunRow.state == RunState.RUNNING)
        with self._database.session() as session:
            query = select(RunRow).where(running, RunRow.started_ms <= before_ms).with_for_update()
            for row in session.scalars(query):
                if row.run_id == active_run:
                    continue
                row.state, row.ended_ms, row.error = RunState.DIED, self._clock.now_ms(), LEASE_EXPIRED
                taken = (RequestRow.run_id == row.run_id) & (RequestRow.state == RequestState.TAKEN)
                session.execute(
                    update(RequestRow)
                    .where(RequestRow.table_id == table_id, RequestRow.service == service, taken)
                    .values(state=RequestState.OPEN, run_id=None)
                )
                mark_changed(session, [table_id], self._clock.now_ms())

    def predict(self, run_id: str, table_id: int, service: str, predicted: Mapping[str, Any]) -> None:
        """Record the plan of an active run that no decision predicted."""
        with self._database.session() as session:
            session.execute(update(RunRow).where(_is(run_id, table_id, service)).values(predicted=dict(predicted)))

    def progress(self, run_id: str, table_id: int, service: str, progress: Mapping[str, Any]) -> None:
        """Record the progress of an active run; the progress of a run that has ended is not changed."""
        mine = _is(run_id, table_id, service) & (RunRow.state == RunState.RUNNING)
        with self._database.session() as session:
            session.execute(update(RunRow).where(mine).values(progress=dict(progress)))

    def run(self, run_id: str, table_id: int, service: str) -> Run | None:
        """Return a run, or None if it is not recorded."""
        with self._database.session() as session:
            row = session.scalar(select(RunRow).where(_is(run_id, table_id, service)))
            return None if row is None else _run(row)

    def runs(self, table_id: int, service: str, *, limit: int = 10) -> tuple[Run, ...]:
        """Return the newest runs, newest first."""
        query = select(RunRow).filter_by(table_id=table_id, service=service)
        with self._database.session() as session:
            rows = session.scalars(query.order_by(RunRow.started_ms.desc(), RunRow.id.desc()).limit(limit))
            return tuple(_run(row) for row in rows)

    def newest_runs(self, tables: Collection[int], *, limit: int) -> dict[tuple[int, str], tuple[Run, ...]]:
        """Return the newest runs by (table id, service) for some tables, newest first."""
        order = (RunRow.started_ms.desc(), RunRow.id.desc())
        age = func.row_number().over(partition_by=(RunRow.table_id, RunRow.service), order_by=order)
        aged = select(RunRow.id, age.label("age")).where(_among(RunRow.table_id, tables)).subquery()
        query = select(RunRow).join(aged, aged.c.id == RunRow.id).where(aged.c.age <= limit).order_by(*order)
        runs_of: dict[tuple[int, str], tuple[Run, ...]] = {}
        with self._database.session() as session:
            for row in session.scalars(query):
                key = row.table_id, row.service
                runs_of[key] = (*runs_of.get(key, ()), _run(row))
        return runs_of

    def runs_since(self, since_ms: int, tables: Collection[int] | None = None) -> dict[int, dict[str, tuple[Run, ...]]]:
        """Return the runs that started since a time, by table id and service, newest first.

        Without `tables`, return runs on all tables, but only of services with an unsuccessful run since then.
        """
        order = (RunRow.started_ms.desc(), RunRow.id.desc())
        query = select(RunRow).where(RunRow.started_ms >= since_ms).order_by(*order)
        if tables is None:
            # One condition on the state, so that the index on states is used.
            failed = (RunRow.started_ms >= since_ms) & RunRow.state.in_(_NOT_WELL)
            pairs = select(RunRow.table_id, RunRow.service).where(failed).distinct().subquery()
            mine = (pairs.c.table_id == RunRow.table_id) & (pairs.c.service == RunRow.service)
            query = query.join(pairs, mine)
        else:
            query = query.where(_among(RunRow.table_id, tables))
        runs_of: dict[int, dict[str, tuple[Run, ...]]] = {}
        with self._database.session() as session:
            for row in session.scalars(query):
                of_table = runs_of.setdefault(row.table_id, {})
                of_table[row.service] = (*of_table.get(row.service, ()), _run(row))
        return runs_of

    def bytes_since(self, services: str | Collection[str], since_ms: int) -> dict[str, int]:
        """Return the bytes that runs since a time wrote or are predicted to write on all tables, by service."""
        query = select(RunRow.service, RunRow.actual, RunRow.predicted).where(RunRow.started_ms >= since_ms)
        wanted = text_list(services, "services")
        counts = dict.fromkeys(wanted, 0)
        with self._database.session() as session:
            for service, actual, predicted in session.execute(query.where(RunRow.service.in_(wanted))):
                counts[service] += int((actual or {}).get("bytes", (predicted or {}).get("bytes", 0)))
        return counts

    def running(self, service: str | None = None) -> tuple[tuple[int, str], ...]:
        """Return (table id, service) of the runs without an outcome."""
        query = select(RunRow.table_id, RunRow.service).where(RunRow.state == RunState.RUNNING)
        if service is not None:
            query = query.where(RunRow.service == service)
        with self._database.session() as session:
            return tuple((table, name) for table, name in session.execute(query))

    def open_runs(self) -> tuple[OpenRun, ...]:
        """Return all runs without an outcome."""
        query = select(RunRow.table_id, RunRow.service, RunRow.started_ms, RunRow.predicted)
        with self._database.session() as session:
            return tuple(
                OpenRun(
                    table_id=table,
                    service=service,
                    started_ms=started_ms,
                    seconds=float((predicted or {}).get("seconds", 0.0)),
                )
                for table, service, started_ms, predicted in session.execute(
                    query.where(RunRow.state == RunState.RUNNING).order_by(RunRow.id)
                )
            )

    def conflicts_since(self, since_ms: int, tables: Collection[int]) -> dict[int, int]:
        """Return how often runs on some tables since a time were retried after conflicts; zeros are left out."""
        count = func.sum(RunRow.actual["conflicts"].as_integer())
        query = select(RunRow.table_id, count).where(RunRow.started_ms >= since_ms, _among(RunRow.table_id, tables))
        with self._database.session() as session:
            rows = session.execute(query.group_by(RunRow.table_id))
            return {table: int(number) for table, number in rows if number and table in tables}

    def spent_since(self, since_ms: int) -> tuple[tuple[int, str, int, int], ...]:
        """Return (table id, service, start, bytes) of the runs since a time; the bytes of an open run are predicted."""
        query = select(RunRow.table_id, RunRow.service, RunRow.started_ms, RunRow.actual, RunRow.predicted)
        with self._database.session() as session:
            return tuple(
                (table, service, started_ms, int((actual or {}).get("bytes", (predicted or {}).get("bytes", 0))))
                for table, service, started_ms, actual, predicted in session.execute(
                    query.where(RunRow.started_ms >= since_ms)
                )
            )


def _record_problem(row: RunRow, outcome: RunOutcome, now_ms: int) -> None:
    """Record the state of a run that ends, with its failures and waits; a run that waited too long has failed."""
    state, row.permanent = outcome.state, outcome.permanent
    if state is RunState.WAITING:
        row.waits += 1
        if row.waiting_since_ms is None:
            row.waiting_since_ms = row.started_ms
        if outcome.wait_for_s is not None and now_ms - row.waiting_since_ms > outcome.wait_for_s * 1000:
            state, row.permanent = RunState.FAILED, True
    if state is not RunState.WAITING:
        row.waiting_since_ms = None
        row.failed_tries = row.failed_tries + 1 if state is RunState.FAILED else 0
    row.state, row.ended_ms = state, now_ms
    row.error = None if outcome.error is None else printable(redact_text(outcome.error), keep="\n\t")


def _among(column: InstrumentedAttribute[int], ids: Collection[int]) -> ColumnElement[bool]:
    """Return the SQL condition that a column is in `ids`, or in their range if there are too many ids."""
    return column.in_(ids) if len(ids) <= _BATCH else column.between(min(ids), max(ids))


def _decision_row(table_id: int, service: str, now_ms: int, decision: Decision) -> dict[str, Any]:
    return {
        "table_id": table_id,
        "service": service,
        "decided_ms": now_ms,
        "due": decision.due,
        "chosen": decision.chosen,
        "reason": printable(redact_text(decision.reason), keep="\n\t"),
        "priority": decision.priority,
        "deadline_ms": decision.deadline_ms,
        "inputs": dict(decision.inputs),
        "predicted": dict(decision.predicted),
        "code": decision.code,
    }


def _decision(row: DecisionRow) -> Decision:
    return Decision(
        due=row.due,
        chosen=row.chosen,
        reason=row.reason,
        priority=row.priority,
        deadline_ms=row.deadline_ms,
        inputs=dict(row.inputs),
        predicted=dict(row.predicted),
        decided_ms=row.decided_ms,
        code=row.code,
    )


def error_of(row: RunRow) -> str | None:
    """Return the error of a run; None while a later try is active."""
    return None if row.state == RunState.RUNNING else row.error


def counted_tries(row: RunRow) -> int:
    """Return the number of tries, except tries that only waited."""
    return max(1, row.tries - row.waits)


def _is(run_id: str, table_id: int, service: str) -> ColumnElement[bool]:
    return (RunRow.run_id == run_id) & (RunRow.table_id == table_id) & (RunRow.service == service)


def _run(row: RunRow) -> Run:
    actual = dict(row.actual)
    after = actual.pop(_AFTER, None)
    return Run(
        run_id=row.run_id,
        service=row.service,
        state=RunState(row.state),
        tries=counted_tries(row),
        started_ms=row.started_ms,
        ended_ms=row.ended_ms,
        instant=row.instant,
        predicted=dict(row.predicted),
        actual=actual,
        error=error_of(row),
        after=after,
        failed_tries=row.failed_tries,
        failure=row.error or "",
        permanent=row.permanent,
        waiting_since_ms=row.waiting_since_ms,
    )
