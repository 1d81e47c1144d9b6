"""The REST API of the pages: permissions of every endpoint, errors, actions, and the client of the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.models import ActionRow, PolicyRow, RequestRow, RunRow
from tests.support.api_server import ApiServer, airflow_command, api_server

ROOT = Path(__file__).resolve().parents[2]
SPARK_PYTHON = ROOT / ".venv" / "bin" / "python"
TABLE = "tables/sales.orders"
NOW = SystemClock().now_ms()
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a catalog and the table `sales.orders`, which Spark's environment wrote."""
    if not SPARK_PYTHON.exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    place = tmp_path_factory.mktemp("lake")
    subprocess.run([SPARK_PYTHON, "-m", "tests.support.lake", str(place)], cwd=ROOT, check=True, env=clean_env(place))
    return place


def clean_env(place: Path) -> dict[str, str]:
    """Return the environment of commands on the catalog of a folder."""
    import os

    return {**os.environ, "LAKEHOUSE_CATALOG": f"sqlite:///{place}/catalog.db"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, place: Path) -> Iterator[ApiServer]:
    """An API server on the catalog, which knows the DAGs."""
    environment = {
        "LAKEHOUSE_CATALOG": f"sqlite:///{place}/catalog.db",
        "LAKEHOUSE_SPARK_HOME": str(ROOT / ".venv"),
    }
    with api_server(tmp_path_factory.mktemp("airflow"), environment) as running:
        airflow_command(running, "dags", "reserialize")
        yield running


#: Each endpoint that reads, with a path that exists.
READS = (
    "tables",
    "scans",
    "summary",
    TABLE,
    "permissions",
    f"{TABLE}/permissions",
    f"{TABLE}/runs",
    f"{TABLE}/services/compaction/decisions",
    f"{TABLE}/policies",
    f"{TABLE}/description",
    f"{TABLE}/timeline",
    f"{TABLE}/timeline/INSTANT",
    f"{TABLE}/instants",
    f"{TABLE}/lineage",
    f"{TABLE}/files",
    f"numbers?table={TABLE.removeprefix('tables/')}",
    "queue",
    "alarms",
    "alarms/rules",
    "actions",
    "dag-states",
    "openapi.json",
)
#: Each endpoint that changes something, or shows what a change would do.
REQUEST = {"action": "request_service", "parameters": {"service": "compaction"}}
PAUSE = {"action": "pause_service", "parameters": {"service": "archive"}}
SILENCE = {"action": "silence", "parameters": {"scope": "sales.orders", "duration": "2h", "reason": "new disks"}}
ACTS = {
    f"{place}{what}": body
    for place, body in ((f"{TABLE}/actions", REQUEST), ("namespaces/sales/actions", PAUSE), ("alarms/actions", SILENCE))
    for what in ("/preview", "")
}


def paths_of(server: ApiServer) -> dict[str, list[str]]:
    """Return the paths and methods of the OpenAPI document, without the prefix."""
    document = server.api("openapi.json")
    return {path.removeprefix("/api/v1/"): [*methods] for path, methods in document["paths"].items()}


def concrete(path: str) -> str:
    """Return a path of the document with values for its parameters."""
    names = {"table": "sales.orders", "namespace": "sales", "service": "compaction", "instant": "INSTANT"}
    return path.format(**names)


def test_every_route_of_the_document_is_asked_below(server: ApiServer) -> None:
    # The publication of a table needs a metastore, so its permission is asked without a result.
    asked = {path.partition("?")[0] for path in (*READS, *ACTS, f"{TABLE}/publication")} - {"openapi.json"}
    assert {concrete(path) for path in paths_of(server)} == asked


def test_openapi_document_of_the_reference_is_that_of_the_server(server: ApiServer) -> None:
    stored = json.loads((ROOT / "docs" / "reference" / "openapi.json").read_text(encoding="utf-8"))
    assert server.api("openapi.json") == stored, "run docs/openapi.py in Airflow's environment, then `make reference`"


def test_every_route_refuses_a_request_without_login(server: ApiServer) -> None:
    answers = {}
    for path, methods in paths_of(server).items():
        for method in methods:
            body = None if method == "get" else REQUEST
            answers[path, method] = server.fetch(f"/lakehouse/api/v1/{concrete(path)}", body=body)[0]
    answers["openapi.json", "get"] = server.fetch("/lakehouse/api/v1/openapi.json")[0]
    answers["pages", "get"] = server.fetch("/lakehouse/pages/x/main.js")[0]
    assert set(answers.values()) == {401}
    for path in ("docs", "redoc", "openapi.json"):
        assert server.fetch(f"/lakehouse/{path}")[0] == 404


def instant(server: ApiServer) -> str:
    """Return the newest instant of the table."""
    return str(server.api(f"{TABLE}/timeline")["instants"][-1])


@pytest.mark.parametrize("role", ["viewer", "op"])
def test_every_read_answers_viewers_and_operators(server: ApiServer, role: str) -> None:
    newest = instant(server)
    for path in READS:
        status, content = server.fetch(f"/lakehouse/api/v1/{path.replace('INSTANT', newest)}", role=role)
        assert status == 200, f"{path}: {content}"


def test_instants_are_filtered_by_service_time_and_number(server: ApiServer) -> None:
    whole = server.api(f"{TABLE}/instants")["instants"]
    assert [row["service"] for row in whole] == [*["write"] * 6, "savepoint"]
    assert {row["rows"] for row in whole[:6]} == {60}
    assert whole[5]["run"] == "ingest.sales.orders/manual__7/ingest"

    def found(query: str) -> list[Any]:
        return list(server.api(f"{TABLE}/instants?{query}")["instants"])

    assert found("limit=1") == whole[-1:] == found("service=savepoint")
    assert found(f"since_ms={whole[3]['begin_ms']}&until_ms={whole[4]['begin_ms']}") == whole[3:5]
    assert found("state=inflight&state=requested") == []
    assert len(found("partition=2026-03-01&service=write")) == 6
    assert server.fetch(f"/lakehouse/api/v1/{TABLE}/instants?service=compact", role="op")[0] == 422
    status, refused = server.fetch(f"/lakehouse/api/v1/{TABLE}/instants?since_ms={10**17}", role="op")
    assert (status, refused["code"]) == (400, "refused") and "give one between 1970 and 9999" in refused["text"]


def test_acts_are_refused_for_viewers_and_done_for_operators(server: ApiServer) -> None:
    for path, body in ACTS.items():
        status, refused = server.fetch(f"/lakehouse/api/v1/{path}", role="viewer", body=body)
        assert (status, refused["code"]) == (403, "forbidden")
        assert server.fetch(f"/lakehouse/api/v1/{path}", role="op", body=body)[0] == 200
    assert server.api(f"{TABLE}/permissions", role="viewer") == {"table": False, "services": False}
    assert server.api(f"{TABLE}/permissions", role="op") == {"table": True, "services": True}


def test_change_with_the_cookie_needs_an_origin_of_this_site(server: ApiServer) -> None:
    cookie = {"Cookie": f"_token={server.token('op')}"}
    path = f"/lakehouse/api/v1/{TABLE}/actions/preview"
    assert server.fetch(path, body=REQUEST, headers=cookie)[0] == 403
    assert server.fetch(path, body=REQUEST, headers={**cookie, "Origin": "https://evil.example"})[0] == 403
    assert server.fetch(path, body=REQUEST, headers={**cookie, "Origin": server.url})[0] == 200


def test_errors_have_a_code_and_a_text(server: ApiServer) -> None:
    status, unknown = server.fetch("/lakehouse/api/v1/tables/sales.ordrs", role="op")
    assert (status, unknown["code"]) == (404, "unknown_table")
    assert "sales.orders" in unknown["text"]
    status, wrong = server.fetch("/lakehouse/api/v1/tables?limit=1000", role="op")
    assert (status, wrong["code"]) == (422, "invalid_parameter")
    status, refused = server.fetch(
        f"/lakehouse/api/v1/{TABLE}/actions", role="op", body={"action": "rolback", "parameters": {}}
    )
    assert (status, refused["code"]) == (400, "refused")
    assert "rollback" in refused["text"]


def test_path_in_the_place_of_a_table_reads_no_other_storage(server: ApiServer, place: Path) -> None:
    name = str(place / "orders").replace("/", "%2F")
    assert server.fetch(f"/lakehouse/api/v1/tables/{name}/description", role="op")[0] == 404


def test_request_and_policy_are_written_with_the_name_of_the_user(server: ApiServer, place: Path) -> None:
    database = Database(f"sqlite:///{place}/catalog.db")
    asked = act(server, "request_service", service="clean")
    paused = act(server, "pause_service", service="clustering")
    with database.session() as session:
        request = session.get(RequestRow, asked["request"])
        assert request is not None and (request.service, request.requested_by) == ("clean", "oleg")
        (policy,) = session.scalars(select(PolicyRow).where(PolicyRow.service == "clustering"))
        assert (policy.settings, policy.author) == ({"enabled": False}, "oleg")
        authors = set(session.scalars(select(ActionRow.author)))
    assert authors == {"oleg"}
    assert (asked["state"], paused["state"]) == ("done", "done")
    line = next(line for line in server.api(TABLE)["services"] if line["service"] == "clustering")
    assert line["enabled"] is False
    act(server, "resume_service", service="clustering")
    line = next(line for line in server.api(TABLE)["services"] if line["service"] == "clustering")
    assert line["enabled"] is True


def act(server: ApiServer, action: str, **parameters: Any) -> dict[str, Any]:
    """Request an action as the operator and return its record."""
    found = server.api(f"{TABLE}/actions", body={"action": action, "parameters": parameters})
    return dict(found["action"])


def preview(server: ApiServer, action: str, **parameters: Any) -> str:
    """Return the effects of an action as one text."""
    found = server.api(f"{TABLE}/actions/preview", body={"action": action, "parameters": parameters})
    return " ".join(found["effects"])


def test_previews_say_what_would_happen_and_change_nothing(server: ApiServer) -> None:
    before = server.api(f"{TABLE}/timeline")["instants"]
    kept = server.api(f"{TABLE}/description")["savepoints"][0]["instant"]
    assert "becomes 7; it is 3, from spec" in preview(
        server, "edit_policy", service="compaction", settings={"max_delta_commits": 7}
    )
    assert "0 failed writes would be rolled back" in preview(server, "rollback_failed")
    assert kept in preview(server, "restore", instant=kept)
    changed = preview(server, "downgrade", to="6")
    assert "The table changes from version 9 to 6." in changed
    assert "Step 1: " in changed
    assert "Nothing to do: the table has version 9." in preview(server, "upgrade", to="9")
    assert server.api(f"{TABLE}/timeline")["instants"] == before


def test_states_of_dags_have_the_permission_of_the_user_and_the_request_follows_them(server: ApiServer) -> None:
    path = "dag-states?dag=services.schedule&dag=lakehouse.actions&dag=publish.gone&service=clean"
    found = server.api(path)
    states = {dag["dag_id"]: (dag["is_paused"], dag["may_edit"]) for dag in found["dags"]}
    assert states == {"services.schedule": (True, True), "lakehouse.actions": (False, True)}
    assert (found["missing"], found["deciding"]) == (["publish.gone"], {"clean": "services.schedule"})
    assert {dag["may_edit"] for dag in server.api(path, role="viewer")["dags"]} == {False}
    paused = preview(server, "request_service", service="clean")
    assert "The DAG services.schedule is paused, so nothing is decided now. Once it is started" in paused
    unpause = {"body": {"is_paused": False}, "method": "PATCH"}
    dag = "/api/v2/dags/services.schedule?update_mask=is_paused"
    assert server.fetch(dag, role="viewer", **unpause)[0] == 403
    assert server.fetch(dag, role="op", **unpause)[0] == 200
    assert "The next decision of the scheduler runs clean" in preview(server, "request_service", service="clean")
    assert server.fetch("/lakehouse/api/v1/dag-states?service=cleam", role="op")[1]["code"] == "refused"
    assert server.fetch("/lakehouse/api/v1/dag-states?" + "dag=a&" * 21, role="op")[0] == 422


def test_numbers_are_read_from_known_tables_only(server: ApiServer, place: Path) -> None:
    found = server.api("numbers?table=sales.orders")
    (orders,) = found["tables"]
    assert orders["error"] is None
    assert orders["numbers"]["file_groups"] == orders["numbers"]["small_files"] == 4
    assert found["as_of_ms"] - orders["numbers"]["last_commit_ms"] < 3_600_000
    place_of_files = f"/lakehouse/api/v1/numbers?table={place}/orders"
    assert server.fetch(place_of_files, role="op")[1]["code"] == "unknown_table"
    assert server.fetch("/lakehouse/api/v1/numbers?" + "table=a.b&" * 11, role="op")[0] == 422


def test_action_of_a_table_starts_one_dag_run_as_the_user(server: ApiServer) -> None:
    record = act(server, "rollback_failed")
    assert (record["dag"], record["state"]) == ("lakehouse.actions", "requested")
    status, run = server.fetch(f"/api/v2/dags/lakehouse.actions/dagRuns/{record['dag_run']}", role="op")
    assert status == 200
    assert (run["conf"], run["triggering_user_name"]) == ({"action_id": record["id"]}, "oleg")


def test_silence_is_in_force_with_the_name_of_the_user_until_it_is_ended(server: ApiServer) -> None:
    body = {"action": "silence", "parameters": {"rule": "freshness", "duration": "1d", "reason": "holiday"}}
    made = server.api("alarms/actions", body=body)["action"]
    number = made["result"]["silence"]
    (line,) = [silence for silence in server.api("alarms")["silences"] if silence["id"] == number]
    assert (line["author"], line["reason"], made["author"]) == ("oleg", "holiday", "oleg")
    ending = {"action": "end_silence", "parameters": {"silence": str(number)}}
    ended = server.api("alarms/actions", body=ending, role="admin")["action"]
    assert (ended["result"], ended["author"]) == ({"silence": number, "ended": True}, "ada")
    assert number not in [silence["id"] for silence in server.api("alarms")["silences"]]
    assert [done["action"] for done in server.api("actions?limit=2")["actions"]] == ["end_silence", "silence"]
    status, again = server.fetch("/lakehouse/api/v1/alarms/actions", role="op", body=ending)
    assert (status, again["code"]) == (400, "refused")


def test_stop_marks_the_task_of_an_active_run_failed(server: ApiServer, place: Path) -> None:
    started = act(server, "rollback_failed")
    # A task without a scheduler: it stays unfinished, as that of an active run.
    run = f"lakehouse.actions/{started['dag_run']}/act"
    with Database(f"sqlite:///{place}/catalog.db").session() as session:
        session.add(RunRow(run_id=run, table_id=1, service="compaction", state="running", started_ms=NOW))
    assert "is marked failed" in preview(server, "stop_run", service="compaction", run=run)
    task = f"/api/v2/dags/lakehouse.actions/dagRuns/{started['dag_run']}/taskInstances/act"
    assert server.fetch(task, role="op")[1]["state"] != "failed", "the preview changes nothing"
    stopped = act(server, "stop_run", service="compaction", run=run)
    assert (stopped["state"], stopped["result"]["stopped"], stopped["author"]) == ("done", True, "oleg")
    assert (stopped["dag"], stopped["dag_run"]) == ("lakehouse.actions", started["dag_run"])
    assert server.fetch(task, role="op")[1]["state"] == "failed"
    assert "Nothing to do" in preview(server, "stop_run", service="compaction", run=run)


def test_command_line_uses_the_api_without_the_catalog(server: ApiServer, tmp_path: Path) -> None:
    def lakehouse(*words: str) -> Any:
        import os

        environ = {name: text for name, text in os.environ.items() if not name.startswith("LAKEHOUSE_")}
        environ |= {"LAKEHOUSE_API": server.url, "LAKEHOUSE_API_TOKEN": server.token("op"), "HOME": str(tmp_path)}
        command = [SPARK_PYTHON, "-m", "lakehouse", *words, "--output", "json"]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    (listed,) = lakehouse("table", "list")["tables"]
    assert (listed["table"], listed["type"], listed["spec_version"]) == ("sales.orders", "MERGE_ON_READ", 1)
    asked = lakehouse("services", "request", "--table", "sales.orders", "--service", "archive")
    assert asked["service"] == "archive"
    explained = lakehouse("services", "explain", "--table", "sales.orders", "--service", "archive")
    assert len(explained["services"]["archive"]["requests"]) == 1
    lakehouse("policy", "set", "--table", "sales.orders", "--service", "clean", "--set", "commits_retained=33")
    shown = lakehouse("policy", "show", "--table", "sales.orders")
    clean = next(policy for policy in shown["policies"] if policy["service"] == "clean")
    assert clean["options"]["hoodie.clean.commits.retained"] == "33"
    scope = ("--namespace", "sales", "--service", "orphans")
    assert lakehouse("policy", "set", *scope, "--set", "enabled=true")["scope"] == "sales"
    orphans = next(line for line in server.api(TABLE)["services"] if line["service"] == "orphans")
    assert orphans["enabled"] is True
    assert lakehouse("policy", "remove", *scope)["changed"] is True
    assert lakehouse("policy", "remove", *scope)["changed"] is False
    ran = lakehouse("action", "run", "--table", "sales.orders", "--action", "savepoint", "--set", "comment=by hand")
    assert (ran["action"]["author"], ran["action"]["dag"]) == ("oleg", "lakehouse.actions")
    listed = [action["action"] for action in lakehouse("action", "list")["actions"]]
    assert listed[:4] == ["savepoint", "remove_policy", "remove_policy", "edit_policy"]
    assert lakehouse("services", "status")["version"] == 1
