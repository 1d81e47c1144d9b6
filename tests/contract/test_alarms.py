"""Contract of alarms on SQLite and PostgreSQL: raise once, resolve, silence, send once, with few queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from lakehouse.errors import UserError
from lakehouse.platform.catalog.alarms import AlarmState, Evaluated, Route
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.models import NamespaceRow, TableRow
from lakehouse.spec.contracts.fleet import Problem, Severity
from tests.contract.test_catalog import Clock, catalog, clock, url

__all__ = ["catalog", "clock", "url"]

DAY = 86_400_000
LEASE = 60_000
SLACK = Route(notifier="slack")


def problem(rule: str = "freshness", *, value: float = 2.0, subject: str = "", critical: bool = False) -> Problem:
    severity = Severity.CRITICAL if critical else Severity.WARNING
    text = f"{rule} is {value}"
    return Problem(
        rule=rule, severity=severity, value=value, threshold=1.0, text=text, action="run it", subject=subject
    )


def tables(catalog: Catalog, number: int = 2) -> list[int]:
    """Insert rows of tables `sales.t0`, `sales.t1`, ... without files, and return their ids."""
    with catalog.database.session() as session:
        session.add(NamespaceRow(name="sales", properties={}, created_ms=0))
        session.flush()
        rows = [
            TableRow(namespace="sales", name=f"t{n}", location=f"/lake/t{n}", spec_version=1, created_ms=0)
            for n in range(number)
        ]
        session.add_all(rows)
        session.flush()
        return [row.id for row in rows]


@contextmanager
def statements(catalog: Catalog) -> Iterator[list[str]]:
    """Collect the statements that the database executes in a block."""
    found: list[str] = []

    def add(connection: object, cursor: object, statement: str, *more: object) -> None:
        found.append(statement)

    event.listen(catalog.database.engine, "before_cursor_execute", add)
    try:
        yield found
    finally:
        event.remove(catalog.database.engine, "before_cursor_execute", add)


def record(catalog: Catalog, table: int, *problems: Problem, rules: frozenset[str] | None = None) -> tuple[int, int]:
    changes = catalog.alarms.record({table: Evaluated(problems=problems, rules=rules)})
    return len(changes.raised), len(changes.resolved)


def test_problem_raises_one_alarm_that_is_refreshed_and_resolved(catalog: Catalog, clock: Clock) -> None:
    first, _ = tables(catalog)
    assert record(catalog, first, problem()) == (1, 0)
    clock.ms += 1000
    assert record(catalog, first, problem(value=3.0, critical=True)) == (0, 0)
    (alarm,) = catalog.alarms.find()
    assert (alarm.table, alarm.rule, alarm.value, alarm.severity) == ("sales.t0", "freshness", 3.0, Severity.CRITICAL)
    assert alarm.text == "freshness is 3.0" and alarm.seen_ms == alarm.raised_ms + 1000
    assert record(catalog, first) == (0, 1)
    assert catalog.alarms.find() == ()
    (old,) = catalog.alarms.find(state=AlarmState.RESOLVED)
    assert old.resolved_ms == clock.ms
    assert record(catalog, first, problem()) == (1, 0)
    assert len(catalog.alarms.find(state=None)) == 2


def test_alarms_of_several_subjects_and_tables_are_separate(catalog: Catalog) -> None:
    first, second = tables(catalog)
    record(catalog, first, problem(subject="clean"), problem(subject="compaction"))
    record(catalog, second, problem(critical=True))
    assert catalog.alarms.find()[0].table == "sales.t1"
    assert [a.table for a in catalog.alarms.find(tables=["sales.t0"])] == ["sales.t0", "sales.t0"]
    assert record(catalog, first, problem(subject="clean")) == (0, 1)
    assert catalog.alarms.counts() == {("freshness", Severity.WARNING): 1, ("freshness", Severity.CRITICAL): 1}


def test_evaluation_of_some_rules_resolves_no_alarm_of_other_rules(catalog: Catalog) -> None:
    first, _ = tables(catalog)
    record(catalog, first, problem("small_files"), problem("freshness"))
    assert record(catalog, first, rules=frozenset({"freshness"})) == (0, 1)
    assert [alarm.rule for alarm in catalog.alarms.find()] == ["small_files"]
    assert record(catalog, first) == (0, 1)


def test_two_schedulers_at_once_raise_one_alarm_for_each_problem(catalog: Catalog) -> None:
    found = {table: Evaluated(problems=[problem()]) for table in tables(catalog, 50)}
    with ThreadPoolExecutor(4) as pool:
        changes = list(pool.map(lambda _: catalog.alarms.record(found), range(8)))
    assert sum(len(change.raised) for change in changes) == 50
    assert len(catalog.alarms.find()) == 50


def test_problem_of_a_dropped_table_is_not_recorded(catalog: Catalog) -> None:
    assert record(catalog, 10_000, problem()) == (0, 0)
    assert catalog.alarms.find(state=None) == ()


def test_number_of_queries_is_the_same_for_ten_and_a_thousand_tables(catalog: Catalog) -> None:
    many = tables(catalog, 1000)
    counts = []
    for some in (many[:10], many):
        rules = ("freshness", "failed_runs", "small_files")
        raised = {table: Evaluated(problems=[problem(rule) for rule in rules]) for table in some}
        changed = {table: Evaluated(problems=[problem("freshness", value=9.0)]) for table in some}
        with statements(catalog) as executed:
            for evaluated in (raised, changed, dict.fromkeys(some, Evaluated())):
                catalog.alarms.record(evaluated)
            catalog.alarms.find(limit=10_000)
        counts.append(len([text for text in executed if text.split()[0] in ("SELECT", "UPDATE")]))
    assert counts[0] == counts[1] <= 14


def test_silenced_alarm_is_not_sent_until_its_silence_ends(catalog: Catalog, clock: Clock) -> None:
    first, second = tables(catalog)
    record(catalog, first, problem("freshness"), problem("small_files"))
    record(catalog, second, problem("freshness"))
    catalog.alarms.silence(rule="freshness", scope="sales.t0", until_ms=clock.ms + DAY, reason="rebuild", author="ada")
    assert [(a.table, a.rule) for a in catalog.alarms.find() if a.silenced_until_ms] == [("sales.t0", "freshness")]
    sent = catalog.alarms.claim(SLACK, "run1", LEASE).alarms
    assert {(a.table, a.rule) for a in sent} == {("sales.t0", "small_files"), ("sales.t1", "freshness")}
    catalog.alarms.confirm("slack", "run1")
    clock.ms += DAY
    assert [(a.table, a.rule) for a in catalog.alarms.claim(SLACK, "run2", LEASE).alarms] == [("sales.t0", "freshness")]


@pytest.mark.parametrize(("scope", "rule"), [("", ""), ("sales", ""), ("sales.t0", "freshness"), ("", "freshness")])
def test_silence_covers_its_scope_and_rule_and_can_be_ended(
    catalog: Catalog, clock: Clock, scope: str, rule: str
) -> None:
    first, _ = tables(catalog)
    record(catalog, first, problem())
    number = catalog.alarms.silence(rule=rule, scope=scope, until_ms=clock.ms + DAY, reason="x", author="ada")
    assert [silence.id for silence in catalog.alarms.silences()] == [number]
    assert catalog.alarms.claim(SLACK, "run1", LEASE).alarms == ()
    assert catalog.alarms.unsilence(number) and not catalog.alarms.unsilence(number)
    assert len(catalog.alarms.claim(SLACK, "run1", LEASE).alarms) == 1


def test_silence_without_reason_or_in_the_past_is_refused(catalog: Catalog, clock: Clock) -> None:
    with pytest.raises(UserError, match="ends before it begins"):
        catalog.alarms.silence(until_ms=clock.ms, reason="x", author="ada")
    with pytest.raises(UserError, match="needs a reason"):
        catalog.alarms.silence(until_ms=clock.ms + 1, reason=" ", author="ada")


def test_alarm_and_its_resolution_are_sent_once_to_each_notifier(catalog: Catalog, clock: Clock) -> None:
    first, _ = tables(catalog)
    record(catalog, first, problem())
    for name in ("slack", "mail"):
        claimed = catalog.alarms.claim(Route(notifier=name), "run1", LEASE).alarms
        assert [alarm.state for alarm in claimed] == [AlarmState.OPEN]
        catalog.alarms.confirm(name, "run1")
        assert catalog.alarms.claim(Route(notifier=name), "run2", LEASE).alarms == ()
    record(catalog, first)
    resolved = catalog.alarms.claim(SLACK, "run3", LEASE).alarms
    assert [alarm.state for alarm in resolved] == [AlarmState.RESOLVED]
    assert resolved[0].sent["slack"] == {"raised": clock.ms}
    catalog.alarms.confirm("slack", "run3")
    assert catalog.alarms.claim(SLACK, "run4", LEASE).alarms == ()


def test_alarm_that_was_resolved_before_it_was_sent_is_never_sent(catalog: Catalog) -> None:
    first, _ = tables(catalog)
    record(catalog, first, problem())
    record(catalog, first)
    assert catalog.alarms.claim(SLACK, "run1", LEASE).alarms == ()


def test_released_claim_is_taken_by_the_next_sender_and_an_expired_one_after_its_lease(
    catalog: Catalog, clock: Clock
) -> None:
    first, _ = tables(catalog)
    record(catalog, first, problem())
    failed = catalog.alarms.claim(SLACK, "run1", LEASE).alarms
    assert len(failed) == 1 and catalog.alarms.claim(SLACK, "run2", LEASE).alarms == ()
    catalog.alarms.release("slack", "run1")
    assert len(catalog.alarms.claim(SLACK, "run2", LEASE).alarms) == 1
    clock.ms += LEASE
    taken_over = catalog.alarms.claim(SLACK, "run3", LEASE).alarms
    assert len(taken_over) == 1
    catalog.alarms.release("slack", "run2")
    assert catalog.alarms.claim(SLACK, "run4", LEASE).alarms == ()


#: The steps of a sender, after each of which it may be killed.
_STEPS = ("claimed", "sent", "recorded")


def deliver(catalog: Catalog, owner: str, inbox: list[tuple[str, tuple[int, ...]]], killed_after: str | None) -> None:
    """Send one message as the task does, and end without a word after a step."""
    claimed = catalog.alarms.claim(SLACK, owner, LEASE)
    if not claimed.alarms or killed_after == "claimed":
        return
    inbox.append((claimed.id, tuple(alarm.id for alarm in claimed.alarms)))
    if killed_after != "sent":
        catalog.alarms.confirm("slack", owner)


@pytest.mark.parametrize("first", _STEPS)
@pytest.mark.parametrize("second", _STEPS)
def test_message_is_sent_at_most_twice_with_one_id_whenever_senders_are_killed(
    catalog: Catalog, clock: Clock, first: str, second: str
) -> None:
    one, other = tables(catalog)
    record(catalog, one, problem())
    inbox: list[tuple[str, tuple[int, ...]]] = []
    deliver(catalog, "run1/1", inbox, first)
    # A new alarm does not change the message that may have been sent already.
    record(catalog, other, problem("freshness"))
    deliver(catalog, "run1/2", inbox, None)
    assert len(inbox) == (1 if first == "claimed" else 2), "the first message is not repeated before its lease ends"
    clock.ms += LEASE
    # The alarm is resolved before the repetition, which is still the same message.
    record(catalog, one)
    deliver(catalog, "run2/1", inbox, second)
    for number in range(3, 8):
        clock.ms += LEASE
        deliver(catalog, f"run{number}/1", inbox, None)
    (raised,) = [alarm.id for alarm in catalog.alarms.find(state=AlarmState.RESOLVED)]
    assert len({sent for sent in inbox}) == len({sent for sent, _ in inbox}), "one id is one message"
    counts = Counter(sent for sent, alarms in inbox if raised in alarms)
    # The alarm, and its resolution, unless both senders ended before they had sent anything.
    assert max(counts.values()) <= 2
    assert len(counts) == 2 if (first, second) != ("claimed", "claimed") else len(counts) == 1
    assert len({alarms for _, alarms in inbox if raised not in alarms}) == 1
    (alarm,) = catalog.alarms.find(state=AlarmState.RESOLVED)
    assert set(alarm.sent["slack"]) == {"raised", "resolved"}


def test_sender_that_sent_nothing_gives_the_message_back_without_an_attempt(catalog: Catalog, clock: Clock) -> None:
    first, _ = tables(catalog)
    record(catalog, first, problem())
    lost = catalog.alarms.claim(SLACK, "run1", LEASE)
    clock.ms += LEASE
    for number in range(2, 5):
        repeated = catalog.alarms.claim(SLACK, f"run{number}", LEASE)
        assert (repeated.id, repeated.attempt, repeated.alarms) == (lost.id, 2, lost.alarms)
        catalog.alarms.release("slack", f"run{number}")
    catalog.alarms.claim(SLACK, "run9", LEASE)
    assert catalog.alarms.confirm("slack", "run9") == 1


def test_two_senders_at_once_never_claim_the_same_alarm(catalog: Catalog) -> None:
    for table in tables(catalog, 20):
        record(catalog, table, problem())
    with ThreadPoolExecutor(4) as pool:
        claims = list(pool.map(lambda n: catalog.alarms.claim(SLACK, f"run{n}", LEASE).alarms, range(4)))
    assert sorted(len(claim) for claim in claims) == [0, 0, 0, 20]


def test_route_takes_alarms_of_its_severity_and_scopes(catalog: Catalog) -> None:
    first, second = tables(catalog)
    record(catalog, first, problem(), problem("unreadable", critical=True))
    record(catalog, second, problem("unreadable", critical=True))
    critical = Route(notifier="pager", severity=Severity.CRITICAL)
    assert [a.rule for a in catalog.alarms.claim(critical, "r", LEASE).alarms] == ["unreadable", "unreadable"]
    one = Route(notifier="team", scopes=("sales.t1", "web"))
    assert [a.table for a in catalog.alarms.claim(one, "r", LEASE).alarms] == ["sales.t1"]


def test_prune_deletes_alarms_that_were_resolved_long_ago(catalog: Catalog, clock: Clock) -> None:
    first, second = tables(catalog)
    record(catalog, first, problem())
    record(catalog, second, problem())
    record(catalog, first)
    clock.ms += 91 * DAY
    assert catalog.alarms.prune() == 1
    assert [alarm.table for alarm in catalog.alarms.find(state=None)] == ["sales.t1"]
