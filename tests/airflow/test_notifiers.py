"""Alarms are sent once by the notifiers of Airflow's providers, to local servers of SMTP, Slack and webhooks."""

from __future__ import annotations

import email
import json
import socketserver
import threading
from collections.abc import Callable, Iterator, Sequence
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseNotifier
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from lakehouse.errors import UserError
from lakehouse.spec.contracts.alarms import AlarmEntry, AlarmEvent, AlarmList
from lakehouse.spec.contracts.fleet import Severity
from lakehouse.spec.table.alarm_notifiers import NotifierSpec, parse_notifiers
from lakehouse_airflow import alarms as tasks
from lakehouse_airflow.notifiers import AlarmMessage, LogNotifier, notifier_of, send

CONTEXT = {"ti": SimpleNamespace(dag_id="services.schedule", run_id="r1", task_id="send_alarms", try_number=1)}


def alarm(number: int = 1, **changes: Any) -> AlarmEntry:
    given = {
        "id": number,
        "severity": Severity.WARNING,
        "state": AlarmEvent.OPEN,
        "table": "sales.orders",
        "rule": "freshness",
        "subject": "",
        "text": "no commit for 3h; the objective is 2h",
        "action": "look at <the> DAG",
        "raised": "2026-01-01T00:00:00Z",
    }
    return AlarmEntry(**{**given, **changes})


MESSAGE = AlarmMessage.of([alarm(), alarm(2, severity=Severity.CRITICAL, table="web.clicks")])


class Receiver:
    """An HTTP server that stores requests and answers with `status`."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, dict(self.headers), body))
                self.send_response(receiver.status)
                self.end_headers()
                self.wfile.write(b"ok")

            def log_message(self, format: str, *args: Any) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


class Mailbox(socketserver.StreamRequestHandler):
    """An SMTP server that stores messages."""

    def handle(self) -> None:
        """Answer the commands of one client."""
        self._say("220 test")
        while line := self.rfile.readline():
            verb = line.split()[0].upper() if line.split() else b""
            if verb == b"DATA":
                self._say("354 go on")
                lines = []
                while (part := self.rfile.readline()) != b".\r\n":
                    lines.append(part)
                self.server.messages.append(b"".join(lines))  # type: ignore[attr-defined]
            if verb == b"QUIT":
                self._say("221 bye")
                return
            self._say("250 ok")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    running = Receiver()
    yield running
    running.server.shutdown()
    running.server.server_close()


@pytest.fixture
def mailbox() -> Iterator[Any]:
    server: Any = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Mailbox)
    server.daemon_threads, server.messages = True, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def add(name: str, **fields: Any) -> None:
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(fields))

    return add


def test_message_has_the_worst_alarm_first_and_an_id_of_its_content() -> None:
    assert MESSAGE.alarms[0].severity is Severity.CRITICAL and MESSAGE.severity == "critical"
    assert MESSAGE.subject.startswith("lakehouse: 2 new alarms: web.clicks: no commit for 3h")
    assert MESSAGE.id == AlarmMessage.of(MESSAGE.alarms[::-1]).id
    resolved = AlarmMessage.of([alarm(state=AlarmEvent.RESOLVED), alarm(2)])
    assert resolved.id != MESSAGE.id and resolved.text.splitlines()[1].startswith("resolved: sales.orders")


def test_message_about_many_alarms_names_the_number_of_the_rest() -> None:
    many = AlarmMessage.of([alarm(number) for number in range(100)])
    assert len(many.text.splitlines()) == 31 and many.text.endswith("... and 70 more: lakehouse alarms list")
    assert len(json.loads(many.json)["alarms"]) == 100


def test_webhook_notifier_posts_the_alarms_as_json(receiver: Receiver, connect: Callable[..., None]) -> None:
    connect("alarm_hook", conn_type="http", host=receiver.url)
    send(notifier_of("webhook", {"http_conn_id": "alarm_hook", "endpoint": "lake"}), MESSAGE, {})
    ((path, headers, body),) = receiver.requests
    assert path == "/lake" and headers["Idempotency-Key"] == MESSAGE.id
    document = json.loads(body)
    assert document["severity"] == "critical"
    assert AlarmList.from_mapping(document).alarms == MESSAGE.alarms


def test_slack_notifier_posts_the_text_to_an_incoming_webhook(receiver: Receiver, connect: Callable[..., None]) -> None:
    connect("data_team", conn_type="slackwebhook", host=receiver.url, password="T00/B00/XXX")
    send(notifier_of("slack", {"slack_webhook_conn_id": "data_team"}), MESSAGE, {})
    ((path, _, body),) = receiver.requests
    assert path == "/T00/B00/XXX"
    assert "critical: web.clicks: no commit for 3h" in json.loads(body)["text"]


def test_smtp_notifier_sends_one_mail_with_a_table(mailbox: Any, connect: Callable[..., None]) -> None:
    host, port = mailbox.server_address
    extra = {"disable_ssl": True, "disable_tls": True}
    connect("smtp_default", conn_type="smtp", host=host, port=port, extra=extra)
    send(notifier_of("smtp", {"to": "data@example.com", "from_email": "lake@example.com"}), MESSAGE, {})
    (raw,) = mailbox.messages
    mail: Message = email.message_from_bytes(raw)
    assert "2 new alarms" in str(mail["Subject"]) and mail["To"] == "data@example.com"
    payload = mail.get_payload()
    html = payload[0].get_payload(decode=True).decode()  # type: ignore[union-attr,index]
    assert "web.clicks" in html and "look at &lt;the&gt; DAG" in html


def test_log_notifier_is_an_example_of_an_own_notifier(caplog: pytest.LogCaptureFixture) -> None:
    notifier = notifier_of("lakehouse_airflow.notifiers.LogNotifier", {"text": "{{ alarms.alarms | length }} alarms"})
    assert isinstance(notifier, LogNotifier)
    send(notifier, MESSAGE, {})
    # The notifier keeps its template for the next message.
    assert notifier.text == "{{ alarms.alarms | length }} alarms"


def test_error_of_a_notifier_is_raised_and_a_missing_provider_is_named(
    receiver: Receiver, connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("alarm_hook", conn_type="http", host=receiver.url)
    receiver.status = 500
    with pytest.raises(Exception, match="500"):
        send(notifier_of("webhook", {"http_conn_id": "alarm_hook"}), MESSAGE, {})
    with pytest.raises(AirflowFailException, match="correct its arguments"):
        notifier_of("smtp", {"too": "x"})
    import sys

    monkeypatch.setitem(sys.modules, "airflow.providers.slack.notifications.slack_webhook", None)
    with pytest.raises(AirflowFailException, match="pip install apache-airflow-providers-slack"):
        notifier_of("slack", {})


class FakeCatalog:
    """Answers the commands `alarms claim` and `alarms settle` as the CLI does, with alarms by notifier."""

    def __init__(self, *notifiers: str) -> None:
        self.unsent = dict.fromkeys(notifiers, (alarm(), alarm(2)))
        self.claimed: dict[str, tuple[AlarmEntry, ...]] = {}
        self.words: list[Sequence[str]] = []
        self.attempt = 1

    def run_command(self, words: Sequence[str], **more: Any) -> str:
        """Answer one command."""
        self.words.append(words)
        name = words[words.index("--notifier") + 1]
        if words[1] == "claim":
            self.claimed[name], self.unsent[name] = self.unsent[name], ()
            return AlarmList(alarms=self.claimed[name], message="m1", attempt=self.attempt).to_json()
        if "--failed" in words:
            self.unsent[name] = self.claimed[name]
        return ""


def spec(name: str, type_: str = "webhook", **arguments: Any) -> NotifierSpec:
    return NotifierSpec(name=name, type=type_, arguments=arguments)


def test_retry_sends_only_with_the_notifier_that_failed(
    receiver: Receiver, mailbox: Any, connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("alarm_hook", conn_type="http", host=receiver.url)
    host, port = mailbox.server_address
    connect("smtp_default", conn_type="smtp", host=host, port=port, extra={"disable_ssl": True, "disable_tls": True})
    catalog = FakeCatalog("hook", "mail")
    monkeypatch.setattr(tasks, "run_command", catalog.run_command)
    notifiers = [
        spec("hook", http_conn_id="alarm_hook"),
        spec("mail", "smtp", to="data@example.com", from_email="lake@example.com"),
    ]
    receiver.status = 503
    with pytest.raises(AirflowException, match="1 of 2 notifiers failed: hook: "):
        tasks.send_pending(notifiers, CONTEXT)
    assert len(mailbox.messages) == 1
    receiver.status = 200
    assert tasks.send_pending(notifiers, CONTEXT) == {"hook": 2, "mail": 0}
    assert len(mailbox.messages) == 1 and len(receiver.requests) == 2
    assert tasks.send_pending(notifiers, CONTEXT) == {"hook": 0, "mail": 0}
    owners = {words[words.index("--owner") + 1] for words in catalog.words}
    assert owners == {"services.schedule/r1/send_alarms/1"}


def test_task_that_is_killed_while_it_sends_leaves_its_claim_and_the_repetition_has_the_same_id(
    receiver: Receiver, connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("alarm_hook", conn_type="http", host=receiver.url)
    catalog, notifiers = FakeCatalog("hook"), [spec("hook", http_conn_id="alarm_hook")]
    monkeypatch.setattr(tasks, "run_command", catalog.run_command)

    def killed(*arguments: Any) -> None:
        send(*arguments)
        raise SystemExit("killed")

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(tasks, "send", killed)
        tasks.send_pending(notifiers, CONTEXT)
    assert [words[1] for words in catalog.words] == ["claim"], "it is unknown whether the message was sent"
    # The lease ended, and the catalog gives out the same message again.
    catalog.unsent, catalog.attempt = dict(catalog.claimed), 2
    assert tasks.send_pending(notifiers, CONTEXT) == {"hook": 2}
    first, second = ((headers["Idempotency-Key"], json.loads(body)) for _, headers, body in receiver.requests)
    assert (first[0], first[1]["id"]) == (second[0], second[1]["id"]) == ("m1", "m1")
    assert "(repeated)" not in first[1]["subject"] and "(repeated)" in second[1]["subject"]


def test_task_reads_the_notifiers_beside_the_folder_of_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "alarms.yaml").write_text("notifiers:\n  ops: {type: log, severity: critical, scopes: [sales]}\n")
    monkeypatch.setenv("LAKEHOUSE_SPECS", str(tmp_path / "tables"))
    catalog = FakeCatalog("ops")
    monkeypatch.setattr(tasks, "run_command", catalog.run_command)
    assert tasks.send_alarms.function(**CONTEXT) == {"ops": 2}
    assert catalog.words[0][6:10] == ["--severity", "critical", "--scope", "sales"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("notifiers:\n  a: {type: slak}", r"a\.yaml:2: type: 'slak' is neither .* Did you mean 'slack'\?"),
        ("notifiers:\n  a: {type: slack, severty: info}", r"unknown name 'severty' .* Did you mean 'severity'\?"),
        ("notifiers:\n  a: {type: slack, arguments: {token: x}}", r"'token' is a secret; put it into an Airflow conn"),
        ("notifiers:\n  a: {severity: info}", r"the notifier a needs 'type'"),
    ],
)
def test_wrong_notifier_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_notifiers(text, source="a.yaml")


def test_every_notifier_is_one_of_airflow() -> None:
    for type_, arguments in (("slack", {"channel": "#x"}), ("slack", {}), ("smtp", {"to": "x"}), ("webhook", {})):
        assert isinstance(notifier_of(type_, arguments), BaseNotifier)
