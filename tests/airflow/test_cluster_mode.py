"""Tasks whose driver runs on a cluster: a fake spark-submit, and a fake resource manager that the task polls."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException, TaskDeferred

from lakehouse.errors import TableBusyError, UserError
from lakehouse.spec.contracts.task_process import TASK, TaskProcess
from lakehouse.spec.report_store import FolderStore, JobDocument
from lakehouse_airflow.operators import LakehouseOperator
from lakehouse_airflow.submission import tasks
from lakehouse_airflow.submission.choice import SUBMISSIONS, choose
from lakehouse_airflow.submission.tasks import SubmissionRecord
from lakehouse_airflow.submission.trigger import ApplicationLink, ApplicationTrigger
from tests.airflow.runs import run_context
from tests.airflow.test_operators import COMMITTED, error_report, operator, wait_for_driver
from tests.support.fake_clusters import FakeYarn, served
from tests.support.fake_submit import FakeSubmit

FIRST = "application_1700000000000_0001"


@pytest.fixture
def yarn(submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeYarn]:
    """A resource manager, and the Spark connection of a cluster in cluster mode."""
    with served(FakeYarn()) as fake:
        assert isinstance(fake, FakeYarn)
        extra = {"deploy-mode": "cluster", "lakehouse": {"resource_manager": fake.url}}
        connection = {"conn_type": "spark", "host": "yarn", "extra": json.dumps(extra)}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
        yield fake


def accepted(yarn: FakeYarn, state: str = "running", reason: str = "") -> str:
    """Add an application to the resource manager; return the output of its spark-submit."""
    number = yarn.answer("POST", "/submit", {}, {"tags": "other"})[1]["id"]
    yarn.finish(state, reason)
    return f"INFO Client: Submitted application {number}"


def task_of(**kwargs: Any) -> LakehouseOperator:
    return operator(**{"poll_s": 0.01, **kwargs})


def documents(task: LakehouseOperator) -> dict[JobDocument, str]:
    return store(task).read(*JobDocument)


def store(task: LakehouseOperator) -> FolderStore:
    folder = task._store(task._command(run_context(task)))
    assert isinstance(folder, FolderStore)
    return folder


def interrupted(task: LakehouseOperator, submit: FakeSubmit, yarn: FakeYarn) -> SubmissionRecord:
    """Submit the job of a task, as a try that is killed while it waits."""
    submit.plan(output=accepted(yarn))
    with pytest.raises(TaskDeferred):
        task_of(deferrable=True).execute(run_context(task))
    (submit.directory / "call.json").unlink()
    return SubmissionRecord.from_json(documents(task)[JobDocument.SUBMISSION])


def test_spark_submit_ends_after_the_submission_and_yarn_starts_the_driver_once(
    submit: FakeSubmit, yarn: FakeYarn
) -> None:
    submit.plan(report=COMMITTED.to_json(), output=accepted(yarn, "succeeded"))
    task = task_of(conf={"spark.yarn.tags": "etl"}, env_vars={"A": "b"})
    context = run_context(task)
    assert task.execute(context) == COMMITTED.to_mapping()
    words = submit.argv
    assert words[words.index("--deploy-mode") + 1] == "cluster"
    conf = dict(word.split("=", 1) for word in words if word.startswith("spark."))
    assert conf["spark.yarn.submit.waitAppCompletion"] == "false" and conf["spark.yarn.maxAppAttempts"] == "1"
    own, token = conf["spark.yarn.tags"].split(",")
    assert own == "etl" and token.startswith("lakehouse-")
    watched = TaskProcess.from_text(conf[f"spark.yarn.appMasterEnv.{TASK}"])
    assert (watched.token, watched.is_here, watched.pids) == (token, False, ())
    assert conf["spark.yarn.appMasterEnv.A"] == "b"
    assert context["pushed"][ApplicationLink.xcom_key] == f"http://rm/proxy/{FIRST}/"
    assert ApplicationLink().get_link(task, ti_key=None) == f"http://rm/proxy/{FIRST}/"
    assert set(documents(task)) == {JobDocument.REPORT}


def test_client_mode_of_yarn_runs_the_driver_on_this_host(submit: FakeSubmit, yarn: FakeYarn) -> None:
    submit.plan(report=COMMITTED.to_json())
    task = task_of(deploy_mode="client", deferrable=True)
    assert task.execute(run_context(task)) == COMMITTED.to_mapping()
    assert yarn.requests == []


@pytest.mark.parametrize("state", ["succeeded", "failed", "killed"])
def test_report_decides_and_not_the_state_of_the_application(submit: FakeSubmit, yarn: FakeYarn, state: str) -> None:
    submit.plan(report=COMMITTED.to_json(), output=accepted(yarn, state))
    task = task_of()
    assert task.execute(run_context(task)) == COMMITTED.to_mapping()
    submit.plan(report=error_report(UserError, "the column is missing"), output=accepted(yarn, state))
    with pytest.raises(AirflowFailException, match=r"^UserError: the column is missing$"):
        task.execute(run_context(task))


def test_application_without_a_report_fails_the_try_with_the_reason_of_yarn(submit: FakeSubmit, yarn: FakeYarn) -> None:
    submit.plan(output=accepted(yarn, "failed", "Container exited with a non-zero exit code 137"))
    task = task_of()
    with pytest.raises(
        AirflowException, match=f"{FIRST} ended as failed, and left no report; Container exited"
    ) as raised:
        task.execute(run_context(task))
    assert not isinstance(raised.value, AirflowFailException)


def test_busy_table_is_rescheduled_and_submitted_again(submit: FakeSubmit, yarn: FakeYarn) -> None:
    submit.plan(report=error_report(TableBusyError, "run x is at it"), output=accepted(yarn, "failed"))
    task = task_of()
    context = run_context(task)
    context["ti"].get_first_reschedule_date = lambda _: None
    with pytest.raises(AirflowRescheduleException):
        task.execute(context)
    submit.plan(report=COMMITTED.to_json(), output=accepted(yarn, "succeeded"))
    assert task.execute(run_context(task)) == COMMITTED.to_mapping()


def test_retry_waits_for_the_live_application_and_submits_nothing(submit: FakeSubmit, yarn: FakeYarn) -> None:
    task = task_of()
    record = interrupted(task, submit, yarn)
    beat = documents(task)[JobDocument.HEARTBEAT]
    assert beat.startswith(record.token)
    driver = store(task)
    # The application ends while the retry polls it.
    original = yarn.answer

    def answer(method: str, path: str, query: Any, body: Any) -> Any:
        if yarn.requests.count(f"GET /ws/v1/cluster/apps/{FIRST}") == 3:
            driver.change({JobDocument.REPORT: COMMITTED.to_json()})
            yarn.finish("succeeded")
        return original(method, path, query, body)

    yarn.answer = answer  # type: ignore[method-assign]
    retry = task_of()
    assert retry.execute(run_context(retry)) == COMMITTED.to_mapping()
    assert not submit.was_started
    assert JobDocument.SUBMISSION not in documents(task)


def test_retry_accepts_the_report_of_an_application_that_has_ended(submit: FakeSubmit, yarn: FakeYarn) -> None:
    task = task_of()
    interrupted(task, submit, yarn)
    yarn.finish("succeeded")
    store(task).change({JobDocument.REPORT: COMMITTED.to_json()})
    assert task.execute(run_context(task)) == COMMITTED.to_mapping()
    assert not submit.was_started


@pytest.mark.parametrize("report", [None, error_report(UserError, "x")])
def test_retry_submits_a_failed_application_again_with_a_new_token(
    submit: FakeSubmit, yarn: FakeYarn, report: str | None
) -> None:
    task = task_of()
    first = interrupted(task, submit, yarn)
    yarn.finish("failed")
    store(task).change({JobDocument.REPORT: report})
    submit.plan(report=COMMITTED.to_json(), output=accepted(yarn, "succeeded"))
    assert task.execute(run_context(task)) == COMMITTED.to_mapping()
    assert submit.was_started and not any(first.token in word for word in submit.argv)


def test_retry_finds_the_application_by_its_tag_if_its_id_was_not_recorded(submit: FakeSubmit, yarn: FakeYarn) -> None:
    task = task_of()
    record = interrupted(task, submit, yarn)
    store(task).change({JobDocument.SUBMISSION: replace(record, application=None).to_json()})
    yarn.newest["applicationTags"] = record.token
    yarn.finish("succeeded")
    store(task).change({JobDocument.REPORT: COMMITTED.to_json()})
    assert task.execute(run_context(task)) == COMMITTED.to_mapping()
    assert not submit.was_started


def test_retry_repeats_a_submission_without_application_with_its_token(submit: FakeSubmit, yarn: FakeYarn) -> None:
    task = task_of()
    record = interrupted(task, submit, yarn)
    store(task).change({JobDocument.SUBMISSION: replace(record, application=None).to_json()})
    submit.plan(report=COMMITTED.to_json(), output=accepted(yarn, "succeeded"))
    assert task.execute(run_context(task)) == COMMITTED.to_mapping()
    assert any(record.token in word for word in submit.argv)


def test_try_with_other_arguments_ends_the_application_of_the_earlier_try(submit: FakeSubmit, yarn: FakeYarn) -> None:
    interrupted(task_of(), submit, yarn)
    submit.plan(report=COMMITTED.to_json(), output=accepted(yarn, "succeeded"))
    task = task_of()
    assert task.execute(run_context(task, params={"full_refresh": True})) == COMMITTED.to_mapping()
    assert yarn.applications[FIRST]["state"] == "KILLED"
    assert "--full-refresh" in submit.argv


def test_silent_cluster_fails_the_try_and_the_next_one_reattaches(
    submit: FakeSubmit, yarn: FakeYarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "FAILED_POLLS", 3)
    task = task_of()
    interrupted(task, submit, yarn)
    original, answers = yarn.answer, iter([True])

    def answer(method: str, path: str, query: Any, body: Any) -> Any:
        return original(method, path, query, body) if next(answers, False) else (503, {})

    yarn.answer = answer  # type: ignore[method-assign]
    with pytest.raises(AirflowException, match=f"{FIRST} cannot be followed: no resource manager answers") as raised:
        task.execute(run_context(task))
    assert not isinstance(raised.value, AirflowFailException)
    assert JobDocument.SUBMISSION in documents(task)


def test_stopped_task_kills_the_application_and_requests_the_end_of_its_driver(
    submit: FakeSubmit, yarn: FakeYarn
) -> None:
    task = task_of()
    record = interrupted(task, submit, yarn)
    waiting = task_of()
    job, attached = waiting._start_on_cluster(run_context(task), task._command(run_context(task)), record.choice)
    assert isinstance(attached, SubmissionRecord)
    waiting._running = job, attached
    waiting.on_kill()
    assert yarn.applications[FIRST]["state"] == "KILLED"
    left = documents(task)
    assert left[JobDocument.STOP] == record.token and JobDocument.SUBMISSION not in left


def test_task_that_is_stopped_during_the_submission_ends_spark_submit_and_the_driver(
    submit: FakeSubmit, yarn: FakeYarn
) -> None:
    submit.plan(hang=True)
    task = task_of()
    raised: list[BaseException] = []

    def execute() -> None:
        try:
            task.execute(run_context(task))
        except AirflowException as error:
            raised.append(error)

    running = threading.Thread(target=execute)
    running.start()
    wait_for_driver(submit)
    accepted(yarn)
    assert task._running is not None
    yarn.newest["applicationTags"] = task._running[1].token
    task.on_kill()
    running.join(timeout=60)
    assert not running.is_alive() and len(raised) == 1
    assert yarn.applications[FIRST]["state"] == "KILLED"
    left = documents(task)
    assert left[JobDocument.STOP] == task._running[1].token and JobDocument.SUBMISSION not in left


def deferred(submit: FakeSubmit, yarn: FakeYarn) -> tuple[TaskDeferred, ApplicationTrigger]:
    submit.plan(output=accepted(yarn))
    task = task_of(deferrable=True)
    with pytest.raises(TaskDeferred) as raised:
        task.execute(run_context(task))
    path, values = raised.value.trigger.serialize()
    assert path == "lakehouse_airflow.submission.trigger.ApplicationTrigger"
    assert raised.value.method_name == "application_complete"
    return raised.value, ApplicationTrigger(**json.loads(json.dumps(values)))


def test_deferred_task_is_completed_with_the_report(submit: FakeSubmit, yarn: FakeYarn) -> None:
    task, (raised, trigger) = task_of(), deferred(submit, yarn)
    yarn.finish("succeeded")
    store(task).change({JobDocument.REPORT: COMMITTED.to_json()})

    async def event() -> Any:
        return await anext(trigger.run())

    payload = json.loads(json.dumps(asyncio.run(event()).payload))
    result = task.application_complete(run_context(task), payload, **raised.kwargs)
    assert result == COMMITTED.to_mapping()
    assert set(documents(task)) == {JobDocument.REPORT}


def test_deferred_task_fails_if_its_application_cannot_be_followed(
    submit: FakeSubmit, yarn: FakeYarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "FAILED_POLLS", 1)
    task, (raised, trigger) = task_of(), deferred(submit, yarn)
    yarn.down = True

    async def event() -> Any:
        return await anext(trigger.run())

    payload = asyncio.run(event()).payload
    with pytest.raises(AirflowException, match="cannot be followed"):
        task.application_complete(run_context(task), payload, **raised.kwargs)
    assert JobDocument.SUBMISSION in documents(task)


def test_killed_trigger_kills_the_application(submit: FakeSubmit, yarn: FakeYarn) -> None:
    _, trigger = deferred(submit, yarn)
    asyncio.run(trigger.on_kill())
    assert yarn.applications[FIRST]["state"] == "KILLED"
    assert JobDocument.STOP in documents(task_of())


def test_cluster_mode_without_a_common_store_of_reports_is_refused(
    submit: FakeSubmit, yarn: FakeYarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LAKEHOUSE_REPORTS")
    task = task_of()
    with pytest.raises(AirflowFailException, match="set LAKEHOUSE_REPORTS to a store that both reach"):
        task.execute(run_context(task))
    assert not submit.was_started and yarn.requests == []


@pytest.mark.parametrize(
    ("connection", "given", "is_cluster", "name"),
    [
        ({"conn_type": "spark", "host": "yarn"}, None, False, None),
        ({"conn_type": "spark", "host": "spark://m:7077"}, None, False, None),
        ({"conn_type": "spark", "host": "yarn"}, None, True, "yarn"),
        ({"conn_type": "spark", "host": "k8s://https://a"}, None, True, "kubernetes"),
        ({"conn_type": "kubernetes"}, None, False, "spark-operator"),
        ({"conn_type": "livy"}, None, False, "livy"),
        ({"conn_type": "aws", "extra": {"lakehouse": {"cluster_id": "j-1"}}}, None, False, "emr"),
        ({"conn_type": "aws", "extra": {"lakehouse": {"application_id": "a"}}}, None, False, "emr-serverless"),
        ({"conn_type": "google_cloud_platform"}, None, False, "dataproc"),
        ({"conn_type": "databricks"}, None, False, "databricks"),
        ({"conn_type": "livy"}, "spark-submit", False, None),
        ({"conn_type": "aws"}, {"name": "emr", "cluster_id": "j-2"}, False, "emr"),
    ],
)
def test_submission_is_chosen_by_the_argument_or_by_the_connection(
    connection: dict[str, Any], given: Any, is_cluster: bool, name: str | None
) -> None:
    fields = {"conn_id": "c", "host": "", **connection}
    choice = choose(given, SimpleNamespace(**fields, extra_dejson=fields.get("extra", {})), is_cluster=is_cluster)
    assert (None if choice is None else choice.name) == name
    assert choice is None or name in SUBMISSIONS


@pytest.mark.parametrize(
    ("connection", "given", "words"),
    [
        ({"conn_type": "spark", "host": "spark://m:7077"}, None, "Spark's standalone master runs no Python drivers"),
        ({"conn_type": "aws"}, None, r"add `cluster_id` \(EMR\) or `application_id`"),
        ({"conn_type": "livy"}, "livi", "unknown submission 'livi'. Did you mean 'livy'"),
    ],
)
def test_submission_that_cannot_be_chosen_is_a_user_error(connection: dict[str, Any], given: Any, words: str) -> None:
    fields = {"conn_id": "c", "host": "", **connection}
    with pytest.raises(UserError, match=words):
        choose(given, SimpleNamespace(**fields, extra_dejson={}), is_cluster=True)


def test_connection_of_another_service_submits_there(
    submit: FakeSubmit, yarn: FakeYarn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument `application` is a path of this host, which Livy cannot read."""
    monkeypatch.setenv("AIRFLOW_CONN_LIVY", json.dumps({"conn_type": "livy", "host": "livy"}))
    task = task_of(conn_id="livy")
    with pytest.raises(AirflowFailException, match="Livy cannot read"):
        task.execute(run_context(task))
    assert submit.check is not None and not submit.was_started
