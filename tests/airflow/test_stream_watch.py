"""The deferrable watch of a stream: what its trigger decides, what its task does, and a stream that is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.serialization.serialized_objects import DagSerialization

from lakehouse.errors import CorruptTableError, RetryableError, UserError
from lakehouse.spec.contracts.job import STORAGE_SETTINGS, IngestReport, JobError, JobStatus, SourceLag
from lakehouse.spec.contracts.stream import StreamEnd, StreamEvent, StreamRun, StreamState, StreamStatus, StreamWatch
from lakehouse.spec.job_command import parse_command
from lakehouse.spec.table.table_spec import load_spec
from lakehouse_airflow import stream, stream_trigger
from lakehouse_airflow.dags_ingest import ingest_dag
from lakehouse_airflow.operators import LakehouseOperator
from lakehouse_airflow.processes import JOB
from lakehouse_airflow.stream import StreamOperator
from lakehouse_airflow.stream_trigger import StreamTrigger, judge, process_place
from tests.airflow.conftest import ROOT
from tests.support.fake_submit import FakeSubmit
from tests.support.waiting import until

SPEC = """
table: t
location: ${LAKEHOUSE_HOME}/table
record_key: id
schema: {id: bigint, name: string}
ingest: {path: landing, stream: {every: 1s, run_for: 1h, watch: deferred}}
"""
WATCH = StreamWatch(table="t.yaml", run_id="r/1", since_ms=1_000, start_by_ms=2_000, deadline_ms=9_000, poll_s=0)
COMMITTED = IngestReport(status=JobStatus.COMMITTED, table="t", instant="i7", rows=7)
STATUS = StreamStatus(run_id="r/1", table="t", started_ms=1_100, written_ms=1_200, commits=2, report=COMMITTED)
ENDED = replace(STATUS, ended=True)
OTHER = replace(STATUS, run_id="r/0", written_ms=1_500)
EARLIER = replace(ENDED, run_id="r/0", written_ms=900)


def alive(status: StreamStatus | None) -> StreamState:
    return StreamState(table="t", alive=True, host="h", until_ms=5_000, status=status)


def over(status: StreamStatus | None) -> StreamState:
    return replace(alive(status), alive=False)


@pytest.mark.parametrize(
    ("state", "now_ms", "is_gone", "expected"),
    [
        (over(None), 1_500, False, None),
        (over(EARLIER), 1_500, False, None),
        (over(EARLIER), 1_500, True, (StreamEnd.DIED, "r/1", None, "before the stream held its lease")),
        (over(None), 2_001, False, (StreamEnd.DIED, "r/1", None, "did not acquire its lease in time")),
        (alive(STATUS), 9_000, True, None),
        (alive(STATUS), 9_001, False, (StreamEnd.OVERDUE, "r/1", None, "did not end in time")),
        (alive(OTHER), 3_000, True, None),
        (over(STATUS), 1_500, False, (StreamEnd.DIED, "r/1", COMMITTED, "on host h ended without a report")),
        (over(ENDED), 9_999, True, (StreamEnd.ENDED, "r/1", COMMITTED, "")),
        (over(replace(OTHER, ended=True)), 3_000, True, (StreamEnd.ENDED, "r/0", COMMITTED, "")),
    ],
    ids=[
        "starting",
        "starting after an earlier stream",
        "process ended at its start",
        "did not acquire its lease in time",
        "lease held",
        "overdue",
        "another stream has the lease",
        "lease expired",
        "ended",
        "another stream ended",
    ],
)
def test_trigger_judges_a_state(
    state: StreamState, now_ms: int, is_gone: bool, expected: tuple[StreamEnd, str, IngestReport | None, str] | None
) -> None:
    event = judge(state, WATCH, now_ms=now_ms, is_gone=is_gone)
    if expected is None:
        assert event is None
    else:
        assert event is not None
        assert (event.end, event.run_id, event.report) == expected[:3]
        assert expected[3] in event.problem


class Looks:
    """Answers of the commands that a trigger runs."""

    def __init__(self, *answers: StreamState | tuple[int, str]) -> None:
        self.answers = list(answers)
        self.words: list[list[str]] = []
        self.variables: dict[str, str] = {}

    async def __call__(self, words: list[str], variables: dict[str, str]) -> tuple[int, str, str]:
        self.words.append(words)
        self.variables = variables
        answer = self.answers.pop(0)
        if isinstance(answer, StreamState):
            return 0, answer.to_json(), ""
        return answer[0], "", answer[1]


def first_event(trigger: StreamTrigger) -> StreamEvent:
    async def run() -> Any:
        return (await anext(aiter(trigger.run()))).payload

    return StreamEvent.from_mapping(asyncio.run(run()))


def test_trigger_looks_until_the_stream_ends_and_logs_each_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lag = (SourceLag(source="kafka:orders", unit="offsets", left=9),)
    more = replace(STATUS, report=replace(COMMITTED, rows=8, lag=lag))
    looks = Looks(over(None), (RetryableError.exit_code, "store away"), alive(STATUS), alive(STATUS), alive(more))
    looks.answers += [over(replace(more, ended=True))]
    monkeypatch.setattr(stream_trigger, "run_in_trigger", looks)
    monkeypatch.setattr(stream_trigger, "_now_ms", lambda: 1_500)
    settings = '{"spark.hadoop.fs.s3a.secret.key": "x"}'
    made = StreamTrigger(watch=replace(WATCH, input="a", storage=settings).to_mapping())
    path, given = made.serialize()
    assert path == "lakehouse_airflow.stream_trigger.StreamTrigger"
    assert "secret" not in repr(made)
    trigger, lines = StreamTrigger(**given), list[str]()
    trigger._log = SimpleNamespace(info=lambda text, *values: lines.append(text % values), warning=lambda *_: None)
    event = first_event(trigger)
    assert (event.end, event.report) == (StreamEnd.ENDED, more.report)
    assert lines == [
        "table t: 2 commits with 7 rows, the newest one is i7",
        "table t: 2 commits with 8 rows, the newest one is i7; lag of kafka:orders: 9 offsets",
    ]
    assert looks.words[0] == ["ingest", "status", "--table", "t.yaml", "--input", "a", "--output", "json"]
    assert looks.variables == {STORAGE_SETTINGS: settings}


@pytest.mark.parametrize(
    ("answer", "now_ms"),
    [((UserError.exit_code, "no such spec"), 1_500), ((RetryableError.exit_code, "no such spec"), 9_001)],
    ids=["final error", "transient error after the deadline"],
)
def test_trigger_that_cannot_read_the_state_says_why(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str], now_ms: int
) -> None:
    monkeypatch.setattr(stream_trigger, "run_in_trigger", Looks(answer))
    monkeypatch.setattr(stream_trigger, "_now_ms", lambda: now_ms)
    event = first_event(StreamTrigger(watch=WATCH.to_mapping()))
    assert (event.end, event.problem) == (StreamEnd.UNREADABLE, "no such spec")


def test_trigger_asks_the_stream_that_it_follows_to_end_when_a_user_ends_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = Looks(alive(OTHER), over(replace(OTHER, ended=True)), StreamState(table="t"))
    monkeypatch.setattr(stream_trigger, "run_in_trigger", looks)
    monkeypatch.setattr(stream_trigger, "_now_ms", lambda: 1_500)
    trigger = StreamTrigger(watch=WATCH.to_mapping())
    assert first_event(trigger).run_id == "r/0"
    asyncio.run(trigger.on_kill())
    assert looks.words[-1] == ["ingest", "stop", "--table", "t.yaml", "--run-id", "r/0"]


def test_request_to_end_survives_the_cancellations_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    async def scenario() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def slow(words: list[str], variables: dict[str, str]) -> tuple[int, str, str]:
            begun.set()
            await goes_on.wait()
            asked.append(words)
            return 0, "", ""

        monkeypatch.setattr(stream_trigger, "run_in_trigger", slow)
        killing = asyncio.create_task(StreamTrigger(watch=WATCH.to_mapping()).on_kill())
        await begun.wait()
        killing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await killing
        goes_on.set()
        await asyncio.gather(*stream_trigger._ASKING)

    asyncio.run(scenario())
    assert asked == [["ingest", "stop", "--table", "t.yaml", "--run-id", "r/1"]]


def test_process_that_ended_is_noticed_on_its_host_only() -> None:
    gone = replace(WATCH, place=process_place(), pid=os.getpid(), created=1.0)
    assert stream_trigger._is_gone(gone)
    assert not stream_trigger._is_gone(replace(gone, created=psutil.Process().create_time()))
    assert not stream_trigger._is_gone(replace(gone, place="elsewhere"))


def operator(table: Path | str = "t.yaml", **kwargs: Any) -> StreamOperator:
    with DAG("ingest.t"):
        arguments: dict[str, Any] = {"task_id": "ingest", "run_for_s": 3600, "table": str(table), "poll_s": 0}
        return StreamOperator(**arguments, check=False, **kwargs)


def run_context(**more: Any) -> dict[str, Any]:
    instance = SimpleNamespace(dag_id="ingest.t", task_id="ingest", run_id="run1", map_index=-1)
    return {"ti": instance, "params": {}, "outlet_events": OutletEventAccessors(), **more}


class Commands:
    """Answers of the commands that a task runs: the state of the stream."""

    def __init__(self, state: StreamState) -> None:
        self.state = state
        self.words: list[list[str]] = []

    def __call__(self, words: list[str], *, variables: dict[str, str]) -> str:
        self.words.append(words)
        return self.state.to_json()


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, submit: FakeSubmit, tmp_path: Path) -> Commands:
    """The commands of the task, while no stream runs."""
    (tmp_path / "t.yaml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    made = Commands(StreamState(table="t"))
    monkeypatch.setattr(stream, "run_command", made)
    return made


def deferred(call: Callable[[], object]) -> tuple[StreamWatch, StreamRun]:
    """Return what a task watches after it was deferred, and what it remembers."""
    with pytest.raises(TaskDeferred) as raised:
        call()
    assert raised.value.method_name == "execute_complete"
    assert raised.value.kwargs is not None
    trigger = raised.value.trigger
    assert isinstance(trigger, StreamTrigger)
    return trigger.watch, StreamRun.from_mapping(raised.value.kwargs["run"])


def test_task_starts_a_stream_as_a_process_of_its_own_and_is_deferred(submit: FakeSubmit, commands: Commands) -> None:
    watch, run = deferred(lambda: operator().execute(run_context()))
    assert until(lambda: submit.was_started)
    command = parse_command(submit.argv[submit.argv.index("ingest") :])
    assert (command.ACTION, command.run_id) == ("stream", watch.run_id)
    assert watch.run_id.startswith("ingest.t/run1/ingest/")
    assert command.run_for is not None and 3590 < int(command.run_for.removesuffix("s")) <= 3600
    assert submit.environment[JOB] == "ingest.t/run1/ingest"
    assert (watch.place, watch.deadline_ms) == (process_place(), run.until_ms + 3_600_000)
    assert run.restarts == 0


def test_task_watches_a_stream_that_runs_and_starts_none(submit: FakeSubmit, commands: Commands) -> None:
    commands.state = alive(OTHER)
    watch, _ = deferred(lambda: operator().execute(run_context()))
    assert (watch.run_id, watch.place) == ("r/0", "")
    assert not submit.was_started


def test_deploy_mode_cluster_submits_without_waiting_and_fails_with_the_submission(
    submit: FakeSubmit, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "yarn"}')
    watch, _ = deferred(lambda: operator(deploy_mode="cluster").execute(run_context()))
    assert watch.place == ""
    assert "spark.yarn.submit.waitAppCompletion=false" in submit.argv
    submit.plan(exit_code=1, output="no queue")
    with pytest.raises(AirflowException, match="spark-submit ended with exit code 1"):
        operator(deploy_mode="cluster").execute(run_context())


def test_replay_in_the_params_runs_as_a_job_of_the_task(submit: FakeSubmit, commands: Commands) -> None:
    submit.plan(report=COMMITTED.to_json())
    assert operator().execute(run_context(params={"replay": True, "force": True}))["instant"] == "i7"
    assert "replay" in submit.argv


def test_dag_of_a_stream_has_the_operator_of_its_watch(tmp_path: Path) -> None:
    operators = {}
    for watch in ("blocking", "deferred"):
        path = tmp_path / f"{watch}.yaml"
        path.write_text(SPEC.replace("watch: deferred", f"watch: {watch}"))
        spec = load_spec(path)
        assert spec.ingest is not None
        dag = ingest_dag(spec, spec.ingest)
        DagSerialization.to_dict(dag)
        operators[watch] = dag.get_task("ingest")
    assert type(operators["blocking"]) is LakehouseOperator
    task = operators["deferred"]
    assert isinstance(task, StreamOperator)
    assert (task.run_for_s, task.overdue_s, task.action, task.max_active_tis_per_dag) == (3600, 21_600, "stream", 1)


RUN = StreamRun(until_ms=4_102_444_800_000)


def complete(event: StreamEvent, run: StreamRun = RUN, **kwargs: Any) -> dict[str, Any]:
    return operator(**kwargs).execute_complete(run_context(), event=event.to_mapping(), run=run.to_mapping())


def test_stream_that_ended_returns_the_sum_of_all_starts(commands: Commands) -> None:
    run = replace(RUN, restarts=1, total=COMMITTED, problem="killed")
    newest = replace(COMMITTED, instant="i9", rows=2)
    result = complete(StreamEvent(end=StreamEnd.ENDED, run_id="r/1", report=newest), run)
    assert (result["rows"], result["instant"]) == (9, "i9")
    assert result["warning"] == "the stream was restarted 1 times, the last time because: killed"


@pytest.mark.parametrize(
    ("error", "kind"), [(CorruptTableError("bad"), AirflowFailException), (RetryableError("bad"), AirflowException)]
)
def test_stream_that_failed_fails_the_task_with_its_error(
    commands: Commands, error: Exception, kind: type[Exception]
) -> None:
    report = IngestReport(status=JobStatus.FAILED, table="t", error=JobError.of(error))
    with pytest.raises(AirflowException, match="bad") as raised:
        complete(StreamEvent(end=StreamEnd.ENDED, run_id="r/1", report=report))
    assert type(raised.value) is kind


def test_stream_that_died_is_started_again_until_its_restarts_are_used(submit: FakeSubmit, commands: Commands) -> None:
    died = StreamEvent(end=StreamEnd.DIED, run_id="r/1", report=COMMITTED, problem="killed")
    watch, run = deferred(lambda: complete(died, restarts=1))
    assert watch.run_id != "r/1"
    assert (run.restarts, run.total, run.until_ms, run.problem) == (1, COMMITTED, RUN.until_ms, "killed")
    with pytest.raises(AirflowException, match="the stream crashed 2 times, the last time: killed"):
        complete(died, run, restarts=1)


def test_stream_that_failed_before_its_lease_is_not_started_again(submit: FakeSubmit, commands: Commands) -> None:
    error = JobError.of(UserError("wrong spec"))
    submit.plan(report=IngestReport(status=JobStatus.FAILED, error=error).to_json())
    reports = Path(os.environ["LAKEHOUSE_REPORTS"])
    deferred(lambda: operator().execute(run_context()))
    assert until(lambda: any(reports.rglob("report.json")))
    with pytest.raises(AirflowFailException, match="wrong spec"):
        complete(StreamEvent(end=StreamEnd.DIED, run_id="r/1", problem="gone"))


@pytest.mark.parametrize("end", [StreamEnd.OVERDUE, StreamEnd.UNREADABLE])
def test_stream_that_is_overdue_or_cannot_be_watched_is_asked_to_end(commands: Commands, end: StreamEnd) -> None:
    with pytest.raises(AirflowException, match="end was requested"):
        complete(StreamEvent(end=end, run_id="r/1", problem="why"))
    assert commands.words == [["ingest", "stop", "--table", "t.yaml", "--run-id", "r/1"]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: None) -> Path:
    """A folder with a spec, and a Spark environment whose spark-submit is a stream without Spark."""
    python = ROOT / ".venv/bin/python"
    if not python.exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    (tmp_path / "t.yaml").write_text(SPEC)
    programs = tmp_path / "spark/bin"
    programs.mkdir(parents=True)
    for name, more in (("python", ""), ("spark-submit", "-m tests.support.fake_stream")):
        (programs / name).write_text(f'#!/bin/sh\nexec "{python}" {more} "$@"\n')
        (programs / name).chmod(0o755)
    settings = {"SPARK_HOME": tmp_path / "spark", "HOME": tmp_path, "REPORTS": tmp_path / "reports"}
    for name, path in settings.items():
        monkeypatch.setenv(f"LAKEHOUSE_{name}", str(path))
    monkeypatch.setenv("FAKE_STREAM", str(tmp_path / "commits"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    return tmp_path


def test_killed_stream_is_started_again_and_ends_at_a_request(home: Path) -> None:
    spec = home / "t.yaml"

    def commits() -> int:
        path = home / "commits"
        return len(path.read_text().splitlines()) if path.exists() else 0

    started: list[int] = []

    async def next_event(watch: StreamWatch, act: Callable[[StreamTrigger], Any]) -> StreamEvent:
        """Return the event of a trigger; after the first commit of the stream something happens to it."""
        trigger = StreamTrigger(watch=replace(watch, poll_s=0.05).to_mapping())
        looking = asyncio.ensure_future(anext(aiter(trigger.run())))
        before = commits()
        assert await asyncio.to_thread(until, lambda: commits() > before)
        done = act(trigger)
        if done is not None:
            await done
        return StreamEvent.from_mapping((await asyncio.wait_for(looking, 60)).payload)

    def kill(trigger: StreamTrigger) -> None:
        os.kill(trigger.watch.pid, signal.SIGKILL)

    try:
        watch, run = deferred(lambda: operator(spec).execute(run_context()))
        started.append(watch.pid)
        assert until(lambda: commits() > 0)
        found, _ = deferred(lambda: operator(spec).execute(run_context()))
        assert (found.run_id, found.pid) == (watch.run_id, 0), "a second task watches the stream that runs"
        died = asyncio.run(next_event(watch, kill))
        assert (died.end, died.run_id) == (StreamEnd.DIED, watch.run_id)
        again, run = deferred(
            lambda: operator(spec).execute_complete(run_context(), event=died.to_mapping(), run=run.to_mapping())
        )
        started.append(again.pid)
        ended = asyncio.run(next_event(again, lambda trigger: trigger.on_kill()))
        assert (ended.end, ended.run_id) == (StreamEnd.ENDED, again.run_id)
        result = operator(spec).execute_complete(run_context(), event=ended.to_mapping(), run=run.to_mapping())
    finally:
        for pid in started:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
    assert result["status"] == "committed"
    assert result["rows"] == commits()
    assert "the stream was restarted 1 times" in result["warning"]
