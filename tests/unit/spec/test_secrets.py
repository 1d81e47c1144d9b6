"""Secrets: refused in specs, options and arguments, hidden in output, and resolved from references at their use."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from lakehouse.cli.main import main
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.catalog.connect import Database, catalog_url
from lakehouse.platform.catalog.new_entries import document_of
from lakehouse.platform.catalog.run_history import Decision, _decision_row
from lakehouse.platform.jobs.run import run_job
from lakehouse.spec.contracts.job import JobError, ServiceReport
from lakehouse.spec.job_command import IngestCommand, JobCommand, ServiceCommand, parse_command
from lakehouse.spec.options.declarations import declarations
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import SqlAlchemyLockOptions
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.transaction import TransactionPolicy
from lakehouse.spec.secrets import holds_secret, is_secret, redact, redact_text, resolve_secret
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.tables import make_env

FORMATTERS = {"text": logging.Formatter()}
# Spark 3.5 has no structured logger.
if find_spec("pyspark.logger") is not None:
    FORMATTERS["json of pyspark"] = import_module("pyspark.logger.logger").JSONFormatter()

KEY = "lakehouse.lock.sqlalchemy.url"
PASSWORD = "pa55:w@rd"
URL = f"postgresql+psycopg://me:{PASSWORD}@db:5432/locks"
#: The first and last part of URLs that are invalid.
URLS = (("", ""), ("postgresql", ":port/x"), ("nodb", "/x"))
SPEC = """
table: sales.orders
location: {location}
record_key: [id]
options:
  lakehouse.lock.sqlalchemy.url: {url}
"""


def test_lock_url_is_a_declared_secret_and_credentials_are_recognized_by_their_names() -> None:
    assert [declared["key"] for declared in declarations() if declared["secret"]] == [KEY]
    names = ("fs.s3a.secret.key", "spark.hadoop.fs.s3a.access.key", "AWS_SECRET_ACCESS_KEY", "fs.azure.account.key.x.y")
    assert all(map(is_secret, names))
    plain = ("hoodie.datasource.write.recordkey.field", "hoodie.write.lock.zookeeper.lock_key", "fs.s3a.endpoint")
    assert not any(map(is_secret, plain))


@pytest.mark.parametrize(
    ("value", "secret"),
    [
        (URL, True),
        ("postgresql://me@db/locks?password=x", True),
        ("postgresql://me:x@[db/locks", True),
        ("hunter2", True),
        ("", False),
        ("sqlite:////var/locks.db", False),
        ("postgresql://me@db/locks", False),
        ("postgresql://me:${LOCK_PASSWORD}@db/locks", False),
        ("${LOCK_URL}", False),
        ("file:/run/secrets/lock", False),
        ("airflow:lock_database", False),
    ],
)
def test_value_contains_a_secret_unless_it_is_a_reference_or_a_url_without_password(value: str, secret: bool) -> None:
    assert holds_secret(value) is secret


@pytest.mark.parametrize(
    "argv",
    [
        [
            *["table", "create", "--name", "t", "--location", "memory://t/t", "--record-key", "id", "--option"],
            f"{KEY}={URL}",
        ],
        ["clean", "due", "--table", "memory://t/t", "--option", f"{KEY}={URL}"],
        ["clean", "run", "--table", "memory://t/t", "--option", f"{KEY}={URL}"],
        ["clean", "due", "--table", "memory://t/t", "--option", URL],
        ["table", "list", "--catalog", URL],
        ["services", "list", "--catalog", URL],
        ["table", "create", "--table", "x.yaml", "--catalog", URL],
    ],
)
def test_command_line_refuses_a_secret_and_does_not_print_it(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == UserError.exit_code
    printed = capsys.readouterr()
    assert "w@rd" not in printed.out + printed.err and "pa55" not in printed.out + printed.err


def test_job_command_with_a_secret_is_refused() -> None:
    with pytest.raises(UserError, match=r"\$\{NAME\}") as error:
        IngestCommand(table="t.yaml", options={KEY: URL})
    assert PASSWORD not in str(error.value)
    command = IngestCommand(table="t.yaml", options={KEY: "airflow:locks"})
    assert parse_command(command.to_argv()) == command


def test_spec_with_a_password_is_refused_and_with_a_reference_accepted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"<spec>:6.*{KEY} contains a secret") as error:
        parse_spec(SPEC.format(location=tmp_path, url=URL), source="<spec>")
    assert "pa55" not in str(error.value)
    spec = parse_spec(SPEC.format(location=tmp_path, url="${LOCK_URL}"), source="<spec>")
    assert spec.call_options()[KEY] == "${LOCK_URL}"


def test_secret_in_the_reader_options_of_a_spec_is_refused(tmp_path: Path) -> None:
    text = f"table: a.b\nlocation: {tmp_path}\nrecord_key: [id]\ningest:\n  path: {tmp_path}/in\n  format: csv\n"
    with pytest.raises(UserError, match=r"<spec>:8.*password contains a secret"):
        parse_spec(f"{text}  options:\n    password: hunter2\n", source="<spec>")


def test_catalog_stores_no_secrets_of_specs_and_decisions(tmp_path: Path) -> None:
    spec = parse_spec(SPEC.format(location=tmp_path, url="${LOCK_URL}"), source="<spec>")
    assert document_of(spec)["options"] == {KEY: "${LOCK_URL}"}
    with pytest.raises(UserError, match="contains a secret"):
        document_of(replace(spec, options={KEY: URL}))
    decision = Decision(due=False, chosen=False, reason=f"cannot be looked at: no answer from {URL}")
    row = _decision_row(1, "clean", 0, decision)
    assert row["reason"] == "cannot be looked at: no answer from postgresql+psycopg://me:***@db:5432/locks"


def test_policies_and_job_errors_hide_secrets() -> None:
    policies = parse_options({"hoodie.write.lock.provider": "sqlalchemy", KEY: URL})
    assert "pa55" not in repr(policies)
    assert "pa55" not in JobError.of(RuntimeError(f"cannot connect to {URL}")).message


def test_redacted_documents_contain_no_secrets() -> None:
    document = {
        "options": {KEY: URL, "fs.s3a.secret.key": "hunter2", "fs.s3a.endpoint": "http://s3:9000"},
        "schema": {"token": "string"},
        "sources": [{"url": f"jdbc {URL} and more", "columns": ("a", "b")}],
        "retries": 3,
    }
    shown = redact(document)
    assert shown == {
        "options": {KEY: "***", "fs.s3a.secret.key": "***", "fs.s3a.endpoint": "http://s3:9000"},
        "schema": {"token": "string"},
        "sources": [{"url": "jdbc postgresql+psycopg://me:***@db:5432/locks and more", "columns": ["a", "b"]}],
        "retries": 3,
    }
    assert redact_text("GET s3://b/x?X-Amz-Security-Token=abc&y=1 failed") == (
        "GET s3://b/x?X-Amz-Security-Token=***&y=1 failed"
    )
    assert redact_text("https://host:8080/path and a@b.c") == "https://host:8080/path and a@b.c"


@pytest.mark.parametrize("text", ["a" * 400_000, "a://b:" * 60_000, "?a" * 200_000, "?" + "token" * 80_000])
def test_redaction_of_long_texts_takes_linear_time(text: str) -> None:
    # A search that starts at every letter takes minutes here. Messages can contain long texts of tables, such as keys.
    assert redact_text(text) == text


def test_passwords_are_hidden_in_messages_of_drivers_and_stores() -> None:
    assert redact_text("host=db password=hunter2 dbname=x") == "host=db password=*** dbname=x"
    assert redact_text("https://a.blob.core.windows.net/c?sv=1&sig=hunter2") == (
        "https://a.blob.core.windows.net/c?sv=1&sig=***"
    )
    assert redact_text("design=1 and s3://b/x?design=a") == "design=1 and s3://b/x?design=a"
    assert redact_text("unpaired surrogate: \ud800") == "unpaired surrogate: \ud800"


@pytest.mark.parametrize("secret", ["my p@ss w0rd", "my%20p%40ss w0rd", "hunter2-of-tls"])
def test_resolved_secret_is_hidden_in_all_messages(secret: str) -> None:
    url = "postgresql://me:my%20p%40ss w0rd@db/locks?sslpassword=hunter2-of-tls"
    assert resolve_secret("${LOCK_URL}", {"LOCK_URL": url}, key=KEY) == url
    assert redact_text(f"the driver says: {secret}!") == "the driver says: ***!"


@pytest.mark.parametrize("formatter", FORMATTERS.values(), ids=FORMATTERS.keys())
def test_tracebacks_in_logs_and_commands_hide_passwords(
    formatter: logging.Formatter,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(caplog.handler, "formatter", formatter)
    main(["options"])
    try:
        raise RuntimeError(f"no answer from {URL}")
    except RuntimeError as error:
        logging.getLogger("some.library").exception("failed")
        sys.excepthook(type(error), error, error.__traceback__)
    for text in (capfd.readouterr().err, caplog.text):
        assert "RuntimeError" in text and "no answer from postgresql+psycopg://me:***@db" in text
        assert "test_tracebacks_in_logs" in text, "the function that raised the error is missing"
        assert "pa55" not in text


def test_reference_is_resolved_from_the_environment_a_file_or_a_connection(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text(f"{URL}\n")
    fields = {"conn_type": "postgres", "login": "me", "password": "p/w", "host": "db", "port": 5432, "schema": "locks"}
    environ = {
        "LOCK_URL": URL,
        "PASSWORD": "x",
        "AIRFLOW_CONN_PLAIN": "postgres://me:x@db/locks",
        "AIRFLOW_CONN_FIELDS": json.dumps(fields),
        "AIRFLOW_CONN_EXTRA": json.dumps({"conn_type": "generic", "extra": json.dumps({"url": URL})}),
        "AIRFLOW_CONN_BROKEN": '{"password": "hunter2"',
    }
    resolved = {
        "${LOCK_URL}": URL,
        "postgresql://me:${PASSWORD}@db/locks": "postgresql://me:x@db/locks",
        f"file:{file}": URL,
        "airflow:plain": "postgresql+psycopg://me:x@db/locks",
        "airflow:fields": "postgresql+psycopg://me:p%2Fw@db:5432/locks",
        "airflow:extra": URL,
        "sqlite://": "sqlite://",
    }
    assert {text: resolve_secret(text, environ, key=KEY) for text in resolved} == resolved
    for text, missing in {
        "${NO_URL}": "NO_URL",
        f"file:{file}.gone": "gone",
        "airflow:gone": "AIRFLOW_CONN_GONE",
        "airflow:broken": "neither a URL",
    }.items():
        with pytest.raises(UserError, match=missing) as error:
            resolve_secret(text, environ, key=KEY)
        assert "hunter2" not in str(error.value)


def test_lock_resolves_its_url_at_the_acquisition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = TransactionPolicy(lock=LockPolicy.of(SqlAlchemyLockOptions(url="${LOCK_URL}")))
    with pytest.raises(UserError, match="LOCK_URL, which is not set"), table_lock(make_env(), policy):
        pass
    monkeypatch.setenv("LOCK_URL", f"sqlite:///{tmp_path}/locks.db")
    with table_lock(make_env(), policy):
        assert (tmp_path / "locks.db").exists()


@pytest.mark.parametrize("url", [f"{lead}://me:{PASSWORD}@db{rest}" for lead, rest in URLS])
def test_error_for_an_invalid_url_does_not_contain_the_password(url: str) -> None:
    policy = TransactionPolicy(lock=LockPolicy.of(SqlAlchemyLockOptions(url=url)))
    calls = (lambda: Database(url), lambda: table_lock(make_env(), policy).__enter__())
    for call in calls:
        with pytest.raises(LakehouseError) as error:
            call()
        assert "pa55" not in str(error.value) and "w@rd" not in str(error.value)


def test_catalog_url_can_be_a_reference_to_a_file(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("sqlite:////x/catalog.db\n")
    assert catalog_url("default", {"LAKEHOUSE_CATALOG": f"file:{tmp_path}/url"}) == "sqlite:////x/catalog.db"


def test_logs_and_reports_of_a_job_hide_passwords(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    main(["options"])
    report = tmp_path / "reports" / "report.json"

    def work(command: JobCommand) -> ServiceReport:
        logging.getLogger("some.library").warning("connecting to %s", URL)
        raise RuntimeError(f"no answer from {URL}")

    run_job(ServiceCommand(service="clean", table="t", report=str(report)), work, lambda command: ())
    printed = capfd.readouterr()
    assert "no answer from postgresql+psycopg://me:***@db" in printed.err
    assert "pa55" not in printed.err + printed.out + report.read_text()
