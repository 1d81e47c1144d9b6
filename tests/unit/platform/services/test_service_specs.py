"""Every ServiceSpec has all parts of a service: CLI verbs, settings, an implementation, a run and a DAG."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.table.services import is_implemented
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.instant import Instant
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.services.assess import assess
from lakehouse.platform.services.registry import PLATFORM_IMPLEMENTATIONS, table_service
from lakehouse.platform.services.service_run import run_service
from lakehouse.spec.contracts.job import ServiceReport
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.options.policies import POLICIES
from lakehouse.spec.table.service_settings import service_settings
from lakehouse.spec.table.services import BY_PARTITION, SERVICE_SPECS, SERVICES, ServiceSpec, service_spec
from lakehouse.spec.table.table_spec import parse_spec

DAGS = Path(__file__).parents[4] / "dags"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(
        str(tmp_path / "t"), name="t", record_key="id", partition_by="day", ordering="ts", table_type="MERGE_ON_READ"
    )
    for ts in (1, 2):
        made.upsert(pa.table({"id": ["a"], "day": ["2026-01-01"], "ts": [ts]}))
    return made


@pytest.fixture(autouse=True)
def metastore(monkeypatch: pytest.MonkeyPatch) -> MemoryMetastore:
    """Return the metastore of the service `sync`."""
    made = MemoryMetastore()
    for module in ("metastore_sync", "check"):
        monkeypatch.setattr(f"lakehouse.platform.services.{module}.open_metastore", lambda policy: made)
    return made


def service_dags() -> set[str]:
    """Return the first arguments of all calls of `usual_service_dag` in the folder of DAGs."""
    calls = [node for path in DAGS.glob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    return {
        call.args[0].value
        for call in calls
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "usual_service_dag"
        and isinstance(call.args[0], ast.Constant)
    }


def test_service_names_are_unique_and_registered() -> None:
    assert len(set(SERVICES)) == len(SERVICES)
    of_the_core = {spec.name for spec in SERVICE_SPECS if is_implemented(spec)}
    assert of_the_core | set(PLATFORM_IMPLEMENTATIONS) == set(SERVICES)
    assert not of_the_core & set(PLATFORM_IMPLEMENTATIONS)
    assert service_dags() == set(SERVICES)


@pytest.mark.parametrize("spec", SERVICE_SPECS, ids=lambda spec: spec.name)
def test_service_has_a_policy_and_a_section_of_the_table_spec(spec: ServiceSpec) -> None:
    assert spec.options in POLICIES
    assert service_settings(spec.name, {"priority": 2, "enabled": False}).priority == 2
    text = (
        f"table: a.b\nlocation: x\nrecord_key: id\npartition_by: day\nservices: {{{spec.name}: {{enabled: false}}}}\n"
    )
    assert parse_spec(text, source="orders.yaml").services == {spec.name: {"enabled": False}}


@pytest.mark.parametrize("spec", SERVICE_SPECS, ids=lambda spec: spec.name)
def test_service_has_four_methods_and_plan_writes_nothing(spec: ServiceSpec, table: Table) -> None:
    service = table_service(table.services, spec.name)
    assert service.spec is spec
    before = [file.path for file in table.refresh().env.storage.list("") if "/.staging/" not in file.path]
    service.plan()
    service.plan(force=spec.name != "ttl")
    assert [file.path for file in table.refresh().env.storage.list("") if "/.staging/" not in file.path] == before
    assert isinstance(service.due().due, bool) and service.due().reason
    planned = service.schedule(force=True)
    assert isinstance(planned, Instant | NothingToDo)
    if spec.action is None:
        assert isinstance(planned, NothingToDo) and "stores no plan on the timeline" in planned.reason
    outcome = service.run(force=True)
    assert isinstance(outcome, NothingToDo) or outcome.totals.files >= 0
    # An archive returns the newest instant that it moved.
    leaves_instant = spec.leaves_instants or spec.name == "archive"
    assert isinstance(outcome, NothingToDo) or (outcome.instant is not None) is leaves_instant


@pytest.mark.parametrize("spec", SERVICE_SPECS, ids=lambda spec: spec.name)
def test_service_is_assessed_and_run_as_a_job(spec: ServiceSpec, table: Table) -> None:
    assert assess(table.services, spec.name, force=True).reason
    report = run_service(spec.name, table, ServiceCommand(service=spec.name, table="t", force=True))
    assert isinstance(report, ServiceReport) and report.error is None


@pytest.mark.parametrize("spec", SERVICE_SPECS, ids=lambda spec: spec.name)
def test_service_has_cli_verbs(spec: ServiceSpec, table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("due",), ("plan", "--dry-run"), ("plan", "--force")):
        assert main([spec.name, *words, "--table", table.location, "--output", "json"]) == 0
        assert json.loads(capsys.readouterr().out) is not None
    assert main([spec.name, "run", "--table", table.location]) == 0


@pytest.mark.parametrize("spec", SERVICE_SPECS, ids=lambda spec: spec.name)
def test_service_refuses_unsupported_partitions_and_pins(spec: ServiceSpec, table: Table) -> None:
    service = table_service(table.services, spec.name)
    if spec.by_partition:
        assert not isinstance(service.plan(force=True, partitions="2026-01-01"), NothingToDo) or spec.name in (
            "clustering",
            "logcompaction",
        )
    else:
        with pytest.raises(UserError, match=f"{spec.name} works on whole tables"):
            service.plan(partitions="2026-01-01")
    if not spec.takes_pins:
        with pytest.raises(UserError, match=f"{spec.name} does not accept pins"):
            service.plan(pinned="2026-01-01")


def test_partition_with_a_comma_is_selected(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path), name="t", record_key="id", partition_by="p", table_type="MERGE_ON_READ")
    for _ in range(2):
        table.upsert(pa.table({"id": ["1", "2"], "p": ["a,b", "c"]}))
    selected = next(path for path in table.partitions() if "," in path or "%2C" in path)
    plan = table.services.compaction.plan(force=True, partitions=selected)
    assert not isinstance(plan, NothingToDo) and {op.partition for op in plan.operations} == {selected}


def test_unknown_service_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match=r"unknown service 'compactoin'\. Did you mean 'compaction'"):
        service_spec("compactoin")
    assert BY_PARTITION == ("compaction", "logcompaction", "clustering")
