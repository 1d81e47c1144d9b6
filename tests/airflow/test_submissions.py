"""Contract of submissions: the same behaviour on each cluster, by the real client of its provider and a fake service.

A backend whose provider is not installed here is skipped. `make` targets and CI without the extras run YARN only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.job_command import IngestCommand, parse_command
from lakehouse_airflow.spark_submit import SubmitCommand
from lakehouse_airflow.submission.choice import SUBMISSIONS, open_submission
from lakehouse_airflow.submission.protocol import (
    Application,
    ApplicationState,
    ApplicationStatus,
    JobRequest,
    Submission,
    SubmissionChoice,
)
from lakehouse_airflow.submission.tasks import SubmissionRecord
from tests.support.fake_clusters import (
    FakeDatabricks,
    FakeEmr,
    FakeEmrServerless,
    FakeKubernetes,
    FakeLivy,
    FakeYarn,
    served,
)
from tests.support.fake_dataproc import dataproc_at

TOKEN = "lakehouse-0123456789abcdef"
COMMAND = IngestCommand(
    table="sales.orders", report="s3://lake/reports/report.json", run_id="d/r/t", options={"a": "b"}
)
REQUEST = JobRequest(
    name="lakehouse ingest run",
    token=TOKEN,
    command=COMMAND,
    application="s3://lake/code/main.py",
    conf={"spark.executor.memory": "2g", "spark.x": "with blank"},
    variables={"LAKEHOUSE_TASK": "%7B%7D", "LAKEHOUSE_JOB": "cluster/d/r/t"},
)
#: The program of a fake spark-submit: it tells the service about the application and ends.
SUBMIT = """
import json, sys, urllib.request
conf = dict(word.split("=", 1) for word in sys.argv[2:] if "=" in word)
body = {"tags": conf.get("spark.yarn.tags"), "pod": conf.get("spark.kubernetes.driver.pod.name")}
request = urllib.request.Request(sys.argv[1] + "/submit", json.dumps(body).encode(), method="POST")
answer = json.load(urllib.request.urlopen(request))
print("INFO Client: Submitted application", answer.get("id", ""))
"""
RUNNING, ENDED = ApplicationState.RUNNING, (ApplicationState.KILLED, ApplicationState.MISSING)


@dataclass(frozen=True, kw_only=True)
class Backend:
    """A submission with its fake service."""

    name: str
    service: Any
    submission: Submission
    choice: SubmissionChoice


def program_at(url: str) -> Callable[[JobRequest, Mapping[str, str]], SubmitCommand]:
    def program(request: JobRequest, conf: Mapping[str, str]) -> SubmitCommand:
        pairs = [f"{key}={value}" for key, value in {**request.conf, **conf}.items()]
        words = (sys.executable, "-c", SUBMIT, url, *pairs, request.application, *request.arguments)
        return SubmitCommand(words=words, variables=dict(request.variables))

    return program


def connection(**fields: Any) -> str:
    extra = fields.pop("extra", {})
    return json.dumps({**fields, "extra": json.dumps(extra)})


def needs(module: str, extra: str) -> None:
    try:
        missing = find_spec(module) is None
    except ModuleNotFoundError:
        missing = True
    if missing:
        pytest.skip(f"not installed: {module} of lakehouse-tables[{extra}]")


def open_backend(name: str, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, place: Path) -> Backend:
    """Start the fake service of a backend and return its submission."""
    settings: dict[str, Any] = {}
    service: Any
    if name == "yarn":
        service = stack.enter_context(served(FakeYarn()))
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", connection(conn_type="spark", host="yarn"))
        settings = {"resource_manager": f"http://127.0.0.1:9,{service.url}"}
    elif name in ("kubernetes", "spark-operator"):
        needs("airflow.providers.cncf.kubernetes", "kubernetes")
        needs("kubernetes", "kubernetes")
        service = stack.enter_context(served(FakeKubernetes()))
        config = place / "kubeconfig"
        config.write_text(json.dumps(kubeconfig(service.url)))
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", connection(conn_type="kubernetes"))
        settings = {"namespace": "lake", "config_file": str(config)}
        settings["template"] = {
            "spec": {"image": "lake:1", "driver": {"cores": 1, "env": [{"name": "A", "value": "1"}]}}
        }
    elif name == "livy":
        needs("airflow.providers.apache.livy", "livy")
        service = stack.enter_context(served(FakeLivy()))
        host, _, port = service.url.removeprefix("http://").partition(":")
        monkeypatch.setenv(
            "AIRFLOW_CONN_CLUSTER", connection(conn_type="livy", schema="http", host=host, port=int(port))
        )
        settings = {"batch": {"queue": "etl"}}
    elif name in ("emr", "emr-serverless"):
        needs("airflow.providers.amazon", "emr")
        service = stack.enter_context(served(FakeEmr() if name == "emr" else FakeEmrServerless()))
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        extra = {"region_name": "us-east-1", "endpoint_url": service.url}
        fields = {"conn_type": "aws", "login": "key", "password": "secret", "extra": extra}
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", connection(**fields))
        role = "arn:aws:iam::123456789012:role/job"
        settings = {"cluster_id": "j-1"} if name == "emr" else {"application_id": "a1", "execution_role_arn": role}
    elif name == "dataproc":
        needs("google.cloud.dataproc_v1", "dataproc")
        service = stack.enter_context(dataproc_at(monkeypatch))
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", connection(conn_type="google_cloud_platform"))
        settings = {"project": "p", "region": "europe-west1", "cluster_name": "c"}
    else:
        needs("airflow.providers.databricks", "databricks")
        service = stack.enter_context(served(FakeDatabricks()))
        host, _, port = service.url.removeprefix("http://").partition(":")
        fields = {"conn_type": "databricks", "schema": "http", "host": host, "port": int(port), "password": "token"}
        monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", connection(**fields))
        settings = {"new_cluster": {"spark_version": "15.4.x", "num_workers": 1, "spark_env_vars": {"A": "1"}}}
    choice = SubmissionChoice(name=name, connection="cluster", settings=settings)
    program = program_at(service.url) if name in ("yarn", "kubernetes") else None
    return Backend(name=name, service=service, submission=open_submission(choice, program), choice=choice)


def kubeconfig(url: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }


@pytest.fixture(params=list(SUBMISSIONS))
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Backend]:
    with ExitStack() as stack:
        yield open_backend(request.param, stack, monkeypatch, tmp_path)


def submit(backend: Backend, request: JobRequest = REQUEST) -> Application:
    return backend.submission.submit(backend.submission.prepare(request))


def status(backend: Backend, application: Application) -> ApplicationStatus:
    """Return the status as a trigger reads it: by the choice, without the program."""
    record = SubmissionRecord(choice=backend.choice, token=TOKEN, arguments=(), application=application)
    again = SubmissionRecord.from_json(record.to_json())
    return open_submission(again.choice).status(again.running)


def test_prepared_job_has_the_command_the_properties_and_the_variables(backend: Backend) -> None:
    prepared = backend.submission.prepare(REQUEST)
    text = json.dumps(prepared)
    for word in (TOKEN, REQUEST.application, "sales.orders", "LAKEHOUSE_JOB", "cluster/d/r/t", "spark.executor.memory"):
        assert word in text, word
    assert backend.service.applications == {}
    arguments = list(COMMAND.to_argv())
    assert any(found[-len(arguments) :] == arguments for found in lists_of(prepared))
    assert parse_command(arguments) == COMMAND


def lists_of(value: Any) -> Iterator[list[Any]]:
    """Yield all lists in a nested document."""
    if isinstance(value, list):
        yield value
    for part in value if isinstance(value, list) else value.values() if isinstance(value, dict) else ():
        yield from lists_of(part)


def test_submitted_application_is_found_by_its_token_and_its_status(backend: Backend) -> None:
    assert backend.submission.find(TOKEN) is None
    application = submit(backend)
    assert not status(backend, application).state.has_ended
    again = backend.submission.find(TOKEN) or submit(backend)
    assert again.ids == application.ids
    assert len(backend.service.applications) == 1
    assert backend.submission.find("lakehouse-of-another-task") is None
    backend.service.finish("running")
    assert status(backend, application).state is RUNNING


@pytest.mark.parametrize(
    ("end", "state"), [("succeeded", ApplicationState.SUCCEEDED), ("failed", ApplicationState.FAILED)]
)
def test_status_of_an_ended_application_has_its_state_and_reason(backend: Backend, end: str, state: str) -> None:
    application = submit(backend)
    backend.service.finish(end, "the reason of the end")
    ended = status(backend, application)
    assert (ended.state, ended.state.has_ended) == (state, True)
    assert end == "succeeded" or "the reason of the end" in ended.reason


def test_killed_application_ends_and_a_second_kill_is_no_error(backend: Backend) -> None:
    application = submit(backend)
    backend.submission.kill(application)
    assert status(backend, application).state in ENDED
    backend.submission.kill(application)
    assert status(backend, application).state in ENDED


def test_unknown_application_is_missing(backend: Backend) -> None:
    application = submit(backend)
    backend.service.applications.clear()
    assert status(backend, application).state is ApplicationState.MISSING


def test_outage_of_the_service_is_retryable(backend: Backend) -> None:
    application = submit(backend)
    backend.service.down = True
    with pytest.raises(RetryableError):
        status(backend, application)


def test_path_of_this_host_is_refused_by_services_that_cannot_read_it(backend: Backend) -> None:
    local = replace(REQUEST, application="/opt/lakehouse/__main__.py")
    if backend.name in ("yarn", "kubernetes"):
        assert "/opt/lakehouse/__main__.py" in backend.submission.prepare(local)["words"]
        return
    with pytest.raises(UserError, match=r"cannot read '/opt/lakehouse/__main__\.py'"):
        backend.submission.prepare(local)


@pytest.mark.parametrize(
    ("name", "module", "extra"),
    [
        ("kubernetes", "airflow.providers.cncf.kubernetes.hooks.kubernetes", "kubernetes"),
        ("spark-operator", "airflow.providers.cncf.kubernetes.hooks.kubernetes", "kubernetes"),
        ("livy", "airflow.providers.apache.livy.hooks.livy", "livy"),
        ("emr", "airflow.providers.amazon.aws.hooks.emr", "emr"),
        ("emr-serverless", "airflow.providers.amazon.aws.hooks.emr", "emr"),
        ("dataproc", "airflow.providers.google.cloud.hooks.dataproc", "dataproc"),
        ("databricks", "airflow.providers.databricks.hooks.databricks", "databricks"),
    ],
)
def test_missing_provider_is_a_user_error_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    for part in (module, "botocore.exceptions", "google.api_core.exceptions", "kubernetes.client.rest"):
        monkeypatch.setitem(sys.modules, part, None)
    keys = ("cluster_id", "application_id", "execution_role_arn", "project", "region", "cluster_name", "new_cluster")
    submission = open_submission(SubmissionChoice(name=name, connection="c", settings=dict.fromkeys(keys, "x")))
    ids = dict.fromkeys(("pod", "namespace", "name", "batch", "cluster", "step", "application", "run", "job"), "1")
    with pytest.raises(UserError, match=rf"install lakehouse-tables\[{extra}\]"):
        submission.status(Application(ids=ids))
