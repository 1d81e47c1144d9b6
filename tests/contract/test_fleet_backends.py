"""The state of a fleet that commands read and change: the same in a catalog and over the REST API of an Airflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from sqlalchemy import delete

from lakehouse import load_catalog
from lakehouse.cli.backends.catalog_backend import CatalogBackend
from lakehouse.cli.backends.open import open_backend
from lakehouse.cli.backends.protocol import ActionRequest, Backend, DueQuery, PolicyScope
from lakehouse.cli.backends.rest_backend import RestBackend
from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.models import RequestRow
from lakehouse.platform.remote.client import API, TOKEN, ApiClient
from lakehouse.spec.contracts.catalog import CatalogTable
from lakehouse.spec.contracts.policies import PolicyOrigin
from tests.support import lake
from tests.support.api_server import USERS, ApiServer, airflow_command, api_server

ROOT = Path(__file__).resolve().parents[2]
AIRFLOW = ROOT / ".venv-airflow" / "bin"
TABLE = "sales.orders"
CLEAN, ARCHIVE = PolicyScope(service="clean", table=TABLE), PolicyScope(service="archive", namespace="sales")
DAY = "2026-03-01"
pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True)
class Fleet:
    """A catalog with one table, and an API server on it."""

    catalog: Catalog
    server: ApiServer

    @property
    def backends(self) -> dict[str, Backend]:
        """Both implementations, by name."""
        client = ApiClient(url=self.server.url, token=self.server.token("op"))
        return {"catalog": CatalogBackend(self.catalog), "rest": RestBackend(client)}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Create the catalog with the table, and run the server."""
    if not (AIRFLOW / "airflow").exists():
        pytest.skip("missing: .venv-airflow; run 'make venvs'")
    place = tmp_path_factory.mktemp("lake")
    url = f"sqlite:///{place}/catalog.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEHOUSE_CATALOG", url)
        lake.build(place)
        environment = {"LAKEHOUSE_CATALOG": url, "LAKEHOUSE_SPARK_HOME": str(ROOT / ".venv")}
        environment |= {"AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        environment["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "plugins")))
        home = tmp_path_factory.mktemp("airflow")
        with api_server(home, environment, programs=AIRFLOW) as server, load_catalog() as catalog:
            airflow_command(server, "dags", "reserialize")
            yield Fleet(catalog, server)


@pytest.fixture(params=["catalog", "rest"])
def backend(fleet: Fleet, request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Return one of the implementations; requests and policies of the test end with it."""
    yield fleet.backends[request.param]
    with fleet.catalog.database.session() as session:
        session.execute(delete(RequestRow))
    for scope in (CLEAN, ARCHIVE, replace(CLEAN, pattern=DAY)):
        fleet.catalog.remove_policy(scope.name, scope.service, pattern=scope.pattern)


def test_tables_are_listed_by_namespace(fleet: Fleet, backend: Backend) -> None:
    (table,) = backend.tables(None).tables
    location = fleet.catalog.entry(TABLE).location
    expected = CatalogTable(table=TABLE, type="MERGE_ON_READ", spec_version=1, author="ada", location=location)
    assert replace(table, drift=None) == expected
    assert backend.tables("sales").tables == (table,)
    assert backend.tables("web").tables == ()


def test_explanation_has_the_parameters_of_open_requests(backend: Backend) -> None:
    assert backend.explanation(TABLE, ["clean"]).services["clean"].requests == ()
    first = backend.request(TABLE, "clean", [], "ada")
    second = backend.request(TABLE, "clean", [DAY, "2026-03-02"], "ada")
    assert (first.table, first.service, second.partitions) == (TABLE, "clean", (DAY, "2026-03-02"))
    assert second.request > first.request
    explained = backend.explanation(TABLE, ["clean"]).services
    assert [*explained] == ["clean"]
    assert explained["clean"].requests == ({}, {"partitions": [DAY, "2026-03-02"]})


def test_policy_is_in_force_until_it_is_removed(backend: Backend) -> None:
    change = backend.set_policy(CLEAN, {"commits_retained": 33})
    assert (change.scope, change.service, change.changed, change.warnings) == (TABLE, "clean", True, ())
    (policy,) = [policy for policy in backend.policies(TABLE, None).policies if policy.service == "clean"]
    assert policy.options["hoodie.clean.commits.retained"] == "33"
    assert PolicyOrigin.TABLE in {setting.origin for setting in policy.settings}
    assert backend.explanation(TABLE, ["clean"]).services["clean"].settings["hoodie.clean.commits.retained"] == "33"
    assert backend.remove_policy(CLEAN).changed
    assert not backend.remove_policy(CLEAN).changed


def test_policies_of_a_namespace_and_of_partitions_apply(backend: Backend) -> None:
    assert backend.set_policy(ARCHIVE, {"enabled": False}).scope == "sales"
    assert backend.explanation(TABLE, ["archive"]).services["archive"].settings["enabled"] is False
    assert backend.remove_policy(ARCHIVE).changed
    pattern = replace(CLEAN, service="compaction", pattern=DAY)
    assert backend.set_policy(pattern, {"enabled": False}).pattern == DAY
    partition = {policy.service: policy.enabled for policy in backend.policies(TABLE, DAY).policies}
    other = {policy.service: policy.enabled for policy in backend.policies(TABLE, "2026-03-02").policies}
    assert (partition["compaction"], other["compaction"]) == (False, True)
    assert backend.remove_policy(pattern).changed


def test_due_services_are_those_of_the_query(fleet: Fleet, backend: Backend) -> None:
    CatalogBackend(fleet.catalog).due(DueQuery())
    due = {decision.service for decision in backend.due(DueQuery(tables=(TABLE,))).decisions if decision.due}
    assert "compaction" in due
    (decision,) = backend.due(DueQuery(services=("compaction",))).decisions
    assert (decision.table, decision.service, decision.due) == (TABLE, "compaction", True)
    states = {state.service: state.due for state in backend.states().services}
    assert states["compaction"] is True


def test_wrong_names_are_refused(backend: Backend) -> None:
    with pytest.raises(UserError, match=r"sales\.nothing"):
        backend.explanation("sales.nothing", [])
    with pytest.raises(UserError, match=r"sales\.nothing"):
        backend.request("sales.nothing", "clean", [], "")
    with pytest.raises(UserError, match=r"sales\.nothing"):
        backend.policies("sales.nothing", None)
    with pytest.raises(UserError, match="no_such_setting"):
        backend.set_policy(CLEAN, {"no_such_setting": 1})
    with pytest.raises(UserError, match="action needs"):
        backend.run_action(ActionRequest())
    with pytest.raises(LakehouseError, match="no_such_action"):
        backend.run_action(ActionRequest(table=TABLE, action="no_such_action"))


def test_action_is_recorded_with_its_parameters(backend: Backend) -> None:
    code, result = backend.run_action(ActionRequest(table=TABLE, action="savepoint", parameters={"comment": "mine"}))
    assert (code, result.action.table, result.action.action) == (0, TABLE, "savepoint")
    assert result.action.parameters["comment"] == "mine"
    newest = backend.actions(TABLE, 1).actions
    assert [action.id for action in newest] == [result.action.id]
    assert len(backend.actions("", 500).actions) >= 1


def test_both_backends_show_the_same_state(fleet: Fleet) -> None:
    in_catalog, over_rest = fleet.backends.values()
    in_catalog.due(DueQuery())
    in_catalog.request(TABLE, "clean", [DAY], "ada")
    assert over_rest.explanation(TABLE, []) == in_catalog.explanation(TABLE, [])
    assert over_rest.states() == in_catalog.states()
    # The server cannot open tables, so it does not know the settings that the table stores.
    shown = [
        {one.service: one.options for one in backend.policies(TABLE, DAY).policies}
        for backend in fleet.backends.values()
    ]
    assert shown[0] == shown[1]


def test_api_shows_one_catalog_only(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API, fleet.server.url)
    monkeypatch.setenv(TOKEN, fleet.server.token("op"))
    with open_backend("default") as backend:
        assert isinstance(backend, RestBackend)
        assert backend.request(TABLE, "archive", [], "somebody").table == TABLE
    wish = fleet.catalog.history.open_requests(fleet.catalog.entry(TABLE).id, "archive")[-1]
    assert wish.requested_by == USERS["op"]
    with pytest.raises(UserError, match=f"catalog 'archive': {API} is set"), open_backend("archive"):
        pass
