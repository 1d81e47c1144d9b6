"""Requests of hostile users and of users behind proxies: the API server stays available, and errors are answers.

The commands of the API are a program of the test that waits until a file exists: a test decides when a read ends.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from sqlalchemy import create_engine

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import UserError
from lakehouse.platform.catalog.connect import Database, upgrade
from lakehouse.platform.catalog.models import ActionRow
from lakehouse_airflow.dags_actions import require_own_run
from tests.support.api_server import ApiServer, api_server
from tests.support.fleet_rows import FleetTable, add_table
from tests.support.postgresql import server
from tests.support.waiting import until

pytestmark = pytest.mark.slow
NOW = SystemClock().now_ms()
API = "/lakehouse/api/v1"
TABLE = f"{API}/tables/sales.orders"
VIEWERS = ("vera", "vito", "viola", "vasco", "vanja")
#: Records the start of each command and waits for the file `open`. As a reader of tables (`python -m`) it stays, and
#: answers each request like `lakehouse.cli.reader`; `policy` commands fail as the file `policy` says.
PROGRAM = r"""#!/bin/sh
if [ "$2" = policy ] && [ -e "$GATE/refuse" ]; then echo "UserError: refused by the test" >&2; exit 64; fi
number=0
started() {
  number=$((number + 1)); touch "$GATE/started.$$.$number"
  while [ ! -e "$GATE/open" ]; do sleep 0.05; done
}
if [ "$1" = -m ]; then
  while read -r request; do
    started
    if [ -e "$GATE/fail" ]; then
      printf '%s\n' '{"version": 1, "exit_code": 64, "errors": "UserError: no such partition"}'
    else printf '%s\n' '{"version": 1, "exit_code": 0, "output": "{\"answer\": 1}"}'; fi
  done
  exit 0
fi
started
if [ -e "$GATE/fail" ]; then echo "UserError: no such partition" >&2; exit 64; fi
echo '{"answer": 1}'
"""


@dataclass(frozen=True)
class Place:
    """The API server, its catalog, and the folder whose files control the commands."""

    server: ApiServer
    catalog: Database
    gate: Path

    def started(self) -> int:
        return len(list(self.gate.glob("started.*")))

    def token(self, name: str) -> str:
        return str(self.server.fetch("/auth/token", body={"username": name, "password": name})[1]["access_token"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("hostile")
    gate, spark = home / "gate", home / "spark" / "bin"
    gate.mkdir()
    spark.mkdir(parents=True)
    for name in ("python", "spark-submit"):
        (spark / name).write_text(PROGRAM, encoding="utf-8")
        (spark / name).chmod(0o755)
    passwords = home / "passwords.json"
    names = {**dict.fromkeys(VIEWERS, "viewer"), "oleg": "op", "ada": "admin"}
    passwords.write_text(json.dumps({name: name for name in names}), encoding="utf-8")
    with server() as postgresql:
        url = postgresql.url.replace("+psycopg:", "+psycopg2:")
        upgrade(create_engine(url))
        catalog = Database(url)
        with catalog.session() as session:
            add_table(session, FleetTable(name="sales.orders"), NOW)
        environment = {
            "LAKEHOUSE_CATALOG": url,
            "LAKEHOUSE_SPARK_HOME": str(spark.parent),
            "GATE": str(gate),
            "AIRFLOW__API__BASE_URL": "",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in names.items()),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        }
        with api_server(home / "airflow", environment) as running:
            yield Place(running, catalog, gate)


@pytest.fixture
def place(whole: Place) -> Iterator[Place]:
    """The server without files that control the commands; commands that a failed test left behind can end."""
    for file in whole.gate.iterdir():
        file.unlink()
    yield whole
    (whole.gate / "open").touch()


def send(place: Place, path: str, token: str, headers: dict[str, str] | None = None, data: bytes | None = None) -> Any:
    """Return the status, the code of the error (empty without one) and the body of a request."""
    sent = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})}
    sent = {name: value for name, value in sent.items() if value}
    try:
        with urlopen(Request(f"{place.server.url}{path}", data=data, headers=sent), timeout=60) as answer:
            return answer.status, "", answer.read()
    except HTTPError as error:
        body = error.read()
        return error.code, json.loads(body).get("code", "") if body[:1] == b"{" else body[:200], body


def test_airflow_answers_while_the_pool_of_reads_is_full_and_each_user_has_few_of_its_places(place: Place) -> None:
    """onyx-dot-app/onyx#8314: endpoints that block take all threads, and the health check of the server waits."""
    tokens = [place.token(name) for name in VIEWERS]
    answers: list[int] = []
    with ThreadPoolExecutor(96) as clients:

        def read(number: int, token: str) -> tuple[int, Any]:
            status, code, _ = send(place, f"{TABLE}/files?partition=p{number}", token)
            answers.append(status)
            return status, code

        sixty = [clients.submit(read, number, tokens[0]) for number in range(60)]
        # One read of the table runs, seven wait; all others of the user are refused while no read has ended.
        assert until(lambda: len(answers) == 52 and place.started() == 1)
        assert Counter(answers) == {429: 52}
        # Of 32 more requests of other users the pool takes 24.
        others = [clients.submit(read, 100 + n, token) for n, token in enumerate(tokens[1:] * 8)]
        assert until(lambda: len(answers) == 60) and place.started() == 1
        assert Counter(answers) == {429: 52, 503: 8}
        # The pool is full. Airflow, the catalog and the previews of editors do not wait for it.
        free = [clients.submit(place.server.fetch, "/api/v2/version") for _ in range(50)]
        assert {answer.result()[0] for answer in free} == {200}
        assert send(place, f"{API}/summary", tokens[4])[0] == 200
        assert send(place, f"{TABLE}/permissions", tokens[0])[0] == 200
        body = json.dumps({"action": "request_service", "parameters": {"service": "clean"}}).encode()
        assert send(place, f"{TABLE}/actions/preview", place.token("oleg"), data=body)[0] == 200
        assert not any(future.done() and future.result()[0] == 200 for future in (*sixty, *others))
        (place.gate / "open").touch()
        codes = Counter(future.result() for future in (*sixty, *others))
        assert codes == {(429, "too_many_requests"): 52, (503, "busy"): 8, (200, ""): 32}
    assert place.started() == 32
    assert send(place, f"{TABLE}/files?partition=after", tokens[0])[0] == 200


def test_failed_read_is_remembered_and_equal_reads_share_one_process(place: Place) -> None:
    """apache/airflow#56635: repeated slow requests make the server unavailable."""
    token, other = place.token("vera"), place.token("vito")
    with ThreadPoolExecutor(20) as clients:
        equal = [clients.submit(send, place, f"{TABLE}/description", t) for t in (token, other) for _ in range(8)]
        assert until(lambda: place.started() == 1)
        (place.gate / "fail").touch()
        (place.gate / "open").touch()
        assert {future.result()[:2] for future in equal} == {(400, "refused")}
    assert send(place, f"{TABLE}/description", token)[:2] == (400, "refused")
    assert place.started() == 1


def test_unknown_table_is_an_error_of_its_own_and_starts_no_process(place: Place) -> None:
    assert send(place, f"{API}/tables/sales.unknown/description", place.token("vera"))[:2] == (404, "unknown_table")
    assert place.started() == 0


HOSTILE = (
    "/tables?search=%00",
    "/tables?namespace=a%00b",
    "/tables/a%00b.c",
    "/tables/sales.orders/services/%00/decisions",
    "/tables/sales.orders/files?partition=%00",
    "/queue?search=%00",
    "/alarms?search=%00",
    "/actions?table=%00",
    "/tables/sales.orders/timeline/%00",
)
HUGE = tuple(
    f"/{path}?offset={number}"
    for path in ("tables", "queue", "alarms", "actions", "tables/sales.orders/files")
    for number in (2**63, 10**40, 1_000_000_001)
)


def test_nul_and_huge_offsets_are_invalid_parameters(place: Place) -> None:
    """Kinto/kinto#1704, laravel/framework#17471: NUL in a query and offsets of more than 64 bits answer 500."""
    token = place.token("vera")
    answers = {path: send(place, f"{API}{path}", token)[:2] for path in (*HOSTILE, *HUGE)}
    assert answers == {
        **dict.fromkeys(HOSTILE, (400, "invalid_parameter")),
        **dict.fromkeys(HUGE, (422, "invalid_parameter")),
    }
    assert send(place, f"{API}/tables?offset=1000000000", token)[0] == 200
    assert place.started() == 0


PARAMETERS: dict[str, Any] = {
    "nul": {"service": "clean", "settings": {"max_runs": "\0"}},
    "pattern": {"service": "compaction", "settings": {"enabled": False}, "pattern": "a\0b"},
    "key": {"service": "clean", "settings": {"\0": "1"}},
    "surrogate": {"service": "clean", "settings": {"max_runs": "\ud800"}},
    "service": {"service": "cl\0ean", "settings": {"max_runs": "1"}},
    "number": {"service": "clean", "settings": {"max_runs": float("nan")}},
    "long": {"service": "clean", "settings": {"max_runs": "1" * 70_000}},
}


def test_action_with_parameters_that_cannot_be_stored_is_refused_and_not_recorded(place: Place) -> None:
    """zenml-io/kitaru#927: NUL in a body reaches the database and answers 500."""
    token = place.token("oleg")
    for name, parameters in PARAMETERS.items():
        body = json.dumps({"action": "edit_policy", "parameters": parameters}).encode()
        for path in (f"{TABLE}/actions", f"{TABLE}/actions/preview", f"{API}/namespaces/sales/actions"):
            assert send(place, path, token, data=body)[:2] == (400, "refused"), name
    large = json.dumps({"action": "savepoint", "parameters": {"comment": "x" * 270_000}}).encode()
    assert send(place, f"{TABLE}/actions", token, data=large)[:2] == (413, "too_long")
    with place.catalog.session() as session:
        assert session.query(ActionRow).count() == 0
    assert place.started() == 0


def test_action_that_fails_in_the_server_is_recorded_as_failed(place: Place) -> None:
    """apache/amoro#3111: an error after the start of a process leaves its state running for ever."""
    (place.gate / "refuse").touch()
    token = place.token("oleg")
    body = json.dumps({"action": "pause_service", "parameters": {"service": "clean"}}).encode()
    assert send(place, f"{TABLE}/actions", token, data=body)[:2] == (400, "refused")
    # No DAG was parsed by this server, so the start of the run fails, too.
    started = json.dumps({"action": "rollback_failed", "parameters": {}}).encode()
    status, _, _ = send(place, f"{TABLE}/actions", token, data=started)
    assert status in (404, 409)
    _, _, listed = send(place, f"{API}/actions", place.token("vera"))
    states = {
        action["action"]: (action["state"], "error" in action["result"]) for action in json.loads(listed)["actions"]
    }
    assert states == {"pause_service": ("failed", True), "rollback_failed": ("failed", True)}


def test_list_of_actions_is_short_and_shows_actions_of_an_ended_server_as_failed(place: Place) -> None:
    """apache/amoro#3111: an error after the start of a process leaves its state running for ever."""
    with place.catalog.session() as session:
        for age, parameters in ((0, {"comment": "x" * 5_000_000}), (3_600_000, {"service": "clean"})):
            row = ActionRow(
                subject="sales.orders",
                action="savepoint",
                parameters=parameters,
                author="oleg",
                created_ms=SystemClock().now_ms() - age,
                state="requested",
                result={"files": ["f" * 100] * 50_000},
            )
            session.add(row)
    _, _, body = send(place, f"{API}/actions?limit=2", place.token("vera"))
    assert len(body) < 100_000
    stuck, fresh = json.loads(body)["actions"]
    assert fresh["state"] == "requested" and fresh["parameters"] == {"comment": "x" * 500 + "...", "shortened": True}
    assert stuck["state"] == "failed" and "request it again" in stuck["result"]["error"]


#: Headers as proxies send them for a page at https://lake.example.com, and the status of an action.
ORIGIN = "https://lake.example.com"
PROXIES: tuple[tuple[dict[str, str], int], ...] = (
    ({"Host": "lake.example.com", "Origin": ORIGIN}, 200),
    ({"Host": "lake.example.com:443", "Origin": ORIGIN}, 200),
    ({"Host": "lake.example.com", "Origin": "http://lake.example.com"}, 200),
    ({"Host": "LAKE.example.com", "Origin": f"{ORIGIN}:443"}, 200),
    ({"Host": "lake.example.com:8443", "Origin": f"{ORIGIN}:8443"}, 200),
    ({"Host": "airflow:8080", "X-Forwarded-Host": "lake.example.com", "Origin": ORIGIN}, 200),
    ({"Host": "airflow:8080", "Sec-Fetch-Site": "same-origin", "Origin": ORIGIN}, 200),
    ({"Host": "[::1]", "Origin": "https://[::1]"}, 200),
    ({"Host": "lake.example.com", "Origin": "https://evil.example"}, 403),
    ({"Host": "lake.example.com", "Origin": f"{ORIGIN}:8443"}, 403),
    ({"Host": "lake.example.com", "Origin": "null"}, 403),
    ({"Host": "lake.example.com"}, 403),
    ({"Host": "lake.example.com", "Origin": f"{ORIGIN}:99999"}, 403),
    ({"Host": "lake.example.com:x", "Origin": ORIGIN}, 403),
    ({"Host": "lake.example.com", "Sec-Fetch-Site": "cross-site", "Origin": ORIGIN}, 403),
    ({"Host": "lake.example.com", "Sec-Fetch-Site": "same-site", "Origin": ORIGIN}, 403),
    ({"Host": "lake.example.com", "Origin": "https://lake.example.com.evil.example"}, 403),
)


def test_change_with_a_cookie_is_accepted_behind_proxies_and_refused_from_other_sites(place: Place) -> None:
    """nesquena/hermes-webui#368, builderz-labs/mission-control#592: default ports differ behind a proxy."""
    cookie = {"Authorization": "", "Cookie": f"_token={place.token('oleg')}"}
    body = json.dumps({"action": "request_service", "parameters": {"service": "clean"}}).encode()
    answers = [
        (headers, send(place, f"{TABLE}/actions/preview", "", {**cookie, **headers}, body)[0]) for headers, _ in PROXIES
    ]
    assert answers == list(PROXIES)


def test_recorded_action_is_done_by_its_own_run_only() -> None:
    require_own_run({"action_id": 7}, "lakehouse_action_7")
    require_own_run({"table": "sales.orders", "action": "savepoint"}, "manual__1")
    for run in ("manual__1", "lakehouse_action_77"):
        with pytest.raises(UserError, match="lakehouse_action_7 only; request the action again"):
            require_own_run({"action_id": 7}, run)
