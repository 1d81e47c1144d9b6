"""Arguments of jobs: each kind is decoded to the value that was encoded, and refuses arguments of another kind."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import UserError
from lakehouse.spec.job_command import (
    IngestCommand,
    JobCommand,
    PublishCommand,
    ReplayCommand,
    ServiceCommand,
    StreamCommand,
    command_of,
    parse_command,
)
from lakehouse.spec.job_flags import ALL_FLAGS

words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
texts = st.none() | words
lists = st.lists(words, max_size=2).map(tuple)
nouns = st.from_regex(r"[a-z][a-z_]{0,10}", fullmatch=True).filter(lambda noun: noun not in ("ingest", "publish"))
moments = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
lengths = st.timedeltas(timedelta(microseconds=1), timedelta(days=400))
durations = st.none() | st.integers(1, 10**4).map(lambda seconds: f"{seconds}s")
#: Values of the fields that are neither switches nor lists.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "service": nouns,
    "table": words,
    "options": st.dictionaries(words.filter(lambda key: bool(key) and "=" not in key), words, max_size=3),
    "output": st.sampled_from([None, "text", "json"]),
    "every": durations,
    "run_for": durations,
}


@st.composite
def commands(draw: st.DrawFn) -> JobCommand:
    kind = draw(st.sampled_from(get_args(JobCommand)))
    types = {"bool": st.booleans(), "tuple[str, ...]": lists, "str | None": texts}
    values = {one.name: draw(VALUES[one.name] if one.name in VALUES else types[str(one.type)]) for one in fields(kind)}
    if "interval_start" in values:
        start, length = draw(moments), draw(lengths)
        has_interval = draw(st.booleans())
        values["interval_start"] = start.isoformat() if has_interval else None
        values["interval_end"] = (start + length).isoformat() if has_interval else None
    if values.get("end_if_idle"):
        values["check"] = True
    if values.get("commit") is not None:
        values["dead_letters"] = None
    command: JobCommand = kind(**values)
    return command


@given(command=commands())
def test_command_round_trips_through_argv(command: JobCommand) -> None:
    argv = command.to_argv()
    assert parse_command(argv) == command
    assert all(isinstance(word, str) for word in argv)


def test_each_argument_of_a_command_has_a_flag() -> None:
    arguments = {one.name for kind in get_args(JobCommand) for one in fields(kind)} - {"service", "table", "also"}
    assert arguments | {"tables"} == {flag.field for flag in ALL_FLAGS}


def test_argv_has_the_flags_of_the_command_line() -> None:
    command = IngestCommand(
        table="orders.yaml",
        interval_start="2026-01-01",
        interval_end="2026-01-02",
        run_id="r1",
        report="/tmp/report.json",
        options={"hoodie.b": "2", "hoodie.a": "x=y"},
    )
    text = (
        "ingest run --table orders.yaml --interval-start 2026-01-01 --interval-end 2026-01-02 --run-id r1 "
        "--report /tmp/report.json --option hoodie.a=x=y --option hoodie.b=2"
    )
    assert " ".join(command.to_argv()) == text
    assert parse_command(["ingest", "run", "--table=orders.yaml", "--option=hoodie.a=x=y"]).options == {
        "hoodie.a": "x=y"
    }


#: Command lines of the release before, which an operator of that release sends.
RECORDED = {
    "ingest run --table orders.yaml --input riders --interval-start 2026-01-01T00:00:00+00:00 --interval-end "
    "2026-01-02T00:00:00+00:00 --run-id d/r/t --report r.json --full-refresh --resnapshot shop.orders --check "
    "--end-if-idle --option hoodie.a=1": IngestCommand(
        table="orders.yaml",
        input="riders",
        interval_start="2026-01-01T00:00:00+00:00",
        interval_end="2026-01-02T00:00:00+00:00",
        run_id="d/r/t",
        report="r.json",
        full_refresh=True,
        resnapshot=("shop.orders",),
        check=True,
        end_if_idle=True,
        options={"hoodie.a": "1"},
    ),
    "ingest stream --table t.yaml --run-id d/r/t/1 --every 30s --run-for 60s": StreamCommand(
        table="t.yaml", run_id="d/r/t/1", every="30s", run_for="60s"
    ),
    "ingest replay --table t.yaml --commit 20260101000000000 --force": ReplayCommand(
        table="t.yaml", commit="20260101000000000", force=True
    ),
    "clustering run --table a.b --table a.c --partition x --partition y --instant 1 --force": ServiceCommand(
        service="clustering", table="a.b", also=("a.c",), partitions=("x", "y"), instant="1", force=True
    ),
    "publish run --table a.b --partition dt=1 --newest --archive-now --pointers-only --output json": PublishCommand(
        table="a.b", partitions=("dt=1",), newest=True, archive_now=True, pointers_only=True, output="json"
    ),
}


@pytest.mark.parametrize("argv", RECORDED)
def test_command_line_of_the_release_before_is_decoded(argv: str) -> None:
    assert parse_command(argv.split()) == RECORDED[argv]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("", "expected a verb and an action"),
        ("ingest", "expected a verb and an action"),
        ("ingest --table x", "expected a verb and an action"),
        ("ingest run", "ingest run needs --table"),
        ("ingest run --table", "--table needs a value"),
        ("ingest run --tabel x", "unknown argument '--tabel'. Did you mean '--table'?"),
        ("ingest run orders.yaml", "unknown argument 'orders.yaml'"),
        (
            "ingest rum --table x",
            "unknown job 'ingest rum'. Did you mean 'run'? Jobs of ingest are run,",
        ),
        ("ingest run --table x --table y", "ingest works on one table; --table was given 2 times"),
        ("publish run --table x --table y --table z", "publish works on one table; --table was given 3 times"),
        ("ingest run --table x --full-refresh=yes", "--full-refresh takes no value"),
        ("ingest run --table x --option a", "--option a: expected key=value"),
        ("ingest run --table x --option a=1 --option a=2", "each key once"),
        ("ingest run --table x --interval-start 2026-01-01", "needs both"),
        ("ingest run --table x --interval-start 2026-01-01 --interval-end 2026-01-01", "is not before"),
        ("ingest run --table x --interval-start soon --interval-end 2026-01-01", "'soon' is not a time"),
        ("ingest run --table x --end-if-idle", "--end-if-idle needs `ingest run --check`, not `ingest run`"),
        ("ingest stream --table x --check --end-if-idle", "--end-if-idle needs `ingest run --check`, not `ingest stre"),
        ("clean run --table x --check --end-if-idle", "--end-if-idle needs `ingest run --check`, not `clean run`"),
        ("clean run --table x --every 1m", "--every: `clean run` runs once; use `ingest stream`"),
        ("ingest run --table x --commit 1", "select the letters of `lakehouse ingest replay`"),
        ("ingest stream --table x --dead-letters y", "select the letters of `lakehouse ingest replay`"),
        ("ingest replay --table x --commit 1 --dead-letters y", "both name dead letters"),
        ("ingest replay --table x --full-refresh", "has no interval and no --full-refresh"),
        ("clean run --table x --output yaml", "--output yaml: expected text or json"),
    ],
)
def test_wrong_argument_is_refused(argv: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_command(argv.split())
    assert message in raised.value.message


def test_arguments_of_other_jobs_without_effect_are_ignored() -> None:
    command = command_of("ingest", "run", table="t", partitions=("x",), instant="1", force=True, newest=True, also=())
    assert command == IngestCommand(table="t")


def test_interval_bounds_without_time_zone_are_utc() -> None:
    command = IngestCommand(table="t", interval_start="2026-01-01", interval_end="2026-01-01T03:00:00+02:00")
    assert command.interval == (
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, 3, tzinfo=timezone(timedelta(hours=2))),
    )


def test_run_of_a_stream_has_its_arguments_and_its_own_id() -> None:
    stream = StreamCommand(table="t", input="riders", options={"a": "1"}, output="json", every="5s", run_id="s")
    assert stream.one_run("s/1") == IngestCommand(
        table="t", input="riders", options={"a": "1"}, output="json", run_id="s/1"
    )
