"""The page how-to/alert-on-failures.md: its connections and notifiers reach local servers of Slack, SMTP and HTTP."""

from __future__ import annotations

import email
import json
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowFailException

from lakehouse.errors import UserError
from lakehouse.spec.contracts.job import IngestReport, JobError, JobStatus
from lakehouse.spec.table.alarm_notifiers import parse_notifiers
from lakehouse_airflow.notifiers import notifier_of, send
from tests.airflow.runs import run_context
from tests.airflow.test_notifiers import MESSAGE, Receiver, mailbox, receiver
from tests.support.doc_blocks import DOCS, Page, PageRun, read_page
from tests.support.fake_submit import FakeSubmit

__all__ = ["mailbox", "receiver"]

PAGE = DOCS / "how-to/alert-on-failures.md"
FAILURE = "there is no file or directory /tmp/no_such_folder/"


@pytest.fixture
def page() -> Page:
    return read_page("docs/how-to/alert-on-failures.md", PAGE.read_text(encoding="utf-8"))


@pytest.fixture
def followed(
    page: Page, receiver: Receiver, mailbox: Any, database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PageRun:
    """The page after its blocks ran, with local servers in place of Slack, the mail server and the pager."""
    host, port = mailbox.server_address
    monkeypatch.setenv("SLACK_HOST", f"{receiver.url}/services")
    monkeypatch.setenv("SLACK_TOKEN", "T000/B000/XXXX")
    monkeypatch.setenv("MAIL_HOST", host)
    monkeypatch.setenv("MAIL_PORT", str(port))
    monkeypatch.setenv("PAGER_HOST", receiver.url)
    run = PageRun(tmp_path, monkeypatch, run_dag=lambda file: None)
    run.run(Page(path=page.path, suite="airflow", blocks=page.blocks))
    assert set(run.executed) >= page.runnable
    # The test process has another Fernet key than the command that stored the passwords.
    run._shell("export", "airflow connections export connections.env --file-format env")
    for line in (tmp_path / "connections.env").read_text().splitlines():
        name, _, uri = line.partition("=")
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", uri)
    return run


def bodies(receiver: Receiver) -> dict[str, Any]:
    """Return the received JSON documents by their paths."""
    return {path: json.loads(body) for path, _, body in receiver.requests}


def send_failure(followed: PageRun, receiver: Receiver, mailbox: Any, submit: FakeSubmit) -> None:
    """Run a task that fails; check the message of each notifier of the page."""
    bag = DagBag(followed.folder / "dags")
    assert bag.import_errors == {}
    task: Any = bag.dags["ingest.try_alerts"].get_task("ingest")
    failed = IngestReport(status=JobStatus.FAILED, table="try_alerts", error=JobError.of(UserError(FAILURE)))
    submit.plan_check(exit_code=64, report=failed.to_json())
    context = run_context(task)
    with pytest.raises(AirflowFailException) as raised:
        task.execute(context)
    context["ti"].dag_id = "ingest.try_alerts"
    for callback in task.on_failure_callback:
        callback({**context, "run_id": "manual__2026-03-01", "exception": raised.value})
    text = f"ingest.try_alerts of manual__2026-03-01 failed in ingest: UserError: {FAILURE}"
    assert bodies(receiver)["/services/T000/B000/XXXX"]["text"] == text
    assert bodies(receiver)["/failures"] == {"dag": "ingest.try_alerts", "error": text}
    assert {headers["X-Token"] for path, headers, _ in receiver.requests if path == "/failures"} == {"secret"}
    (raw,) = mailbox.messages
    mail = email.message_from_bytes(raw)
    assert (mail["Subject"], mail["To"], mail["From"]) == (
        "ingest.try_alerts failed",
        "data@example.com",
        "lake@example.com",
    )
    shown = PAGE.read_text(encoding="utf-8")
    assert "ingest.try_alerts of manual__... failed in ingest: UserError: ...no_such_folder..." in shown


def send_alarms(followed: PageRun, receiver: Receiver, mailbox: Any) -> None:
    """Send alarms with the notifiers of the page's file."""
    declared = parse_notifiers((followed.folder / "dags/alarms.yaml").read_text(), source="alarms.yaml")
    assert [spec.name for spec in declared] == ["data-team", "operators", "pager"]
    for spec in declared:
        send(notifier_of(spec.type, spec.arguments), MESSAGE, {})
    assert set(bodies(receiver)) == {"/services/T000/B000/XXXX", "/alarms"}
    (raw,) = mailbox.messages
    assert email.message_from_bytes(raw)["To"] == "operators@example.com"


def check_deadline(followed: PageRun) -> None:
    """Check the notifier of the late run."""
    bag = DagBag(followed.folder / "dags/nightly_clean.py")
    assert bag.import_errors == {}
    (deadline,) = bag.dags["nightly_clean"].deadline
    assert deadline.callback.path.endswith(".SlackWebhookNotifier")
    assert deadline.callback.kwargs["slack_webhook_conn_id"] == "data_team"


def test_page_sends_failures_alarms_and_late_runs_to_slack_mail_and_webhook(
    followed: PageRun, receiver: Receiver, mailbox: Any, submit: FakeSubmit
) -> None:
    send_failure(followed, receiver, mailbox, submit)
    receiver.requests.clear()
    mailbox.messages.clear()
    send_alarms(followed, receiver, mailbox)
    check_deadline(followed)
