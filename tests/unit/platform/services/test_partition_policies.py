"""Policies of partition patterns: each service keeps off the partitions for which a pattern switches it off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table, load_catalog
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.services import clustering
from lakehouse.errors import SettingError, UnsupportedError
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.compaction import CompactionPlan
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.services.schedule import decide
from lakehouse.platform.services.service_run import run_service
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.options.partition_rules import PARTITION_RULES
from lakehouse.spec.table.services import SERVICES, service_spec

OLD, NEW = "2026-02-01", "2026-03-01"
SMALL = {"hoodie.parquet.small.file.limit": "0"}
NAME = "sales.orders"


def rows(*days: str, value: int = 0, first: int = 0) -> pa.Table:
    ids = [f"{day}-{n}" for day in days for n in range(first, first + 3)]
    return pa.table({"id": ids, "day": [day for day in days for _ in range(3)], "v": [value] * len(ids)})


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """Return a catalog with the merge-on-read table `orders`, which has five log files in each of two partitions."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    with load_catalog() as opened:
        where = str(tmp_path / "orders")
        table = Table.create(where, name="orders", record_key="id", partition_by="day", table_type="MERGE_ON_READ")
        for value in range(6):
            table.upsert(rows(OLD, NEW, value=value))
        opened.register_table(NAME, where)
        yield opened


@pytest.fixture
def copied(catalog: Catalog, tmp_path: Path) -> str:
    """Return the name of a copy-on-write table with four base files in each of two partitions."""
    where = str(tmp_path / "items")
    table = Table.create(where, name="items", record_key="id", partition_by="day", table_type="COPY_ON_WRITE")
    for number in range(4):
        table.bulk_insert(rows(OLD, NEW, first=3 * number), options=SMALL)
    catalog.register_table("sales.items", where)
    return "sales.items"


def partitions_of(plan: CompactionPlan | ClusteringPlan | NothingToDo) -> set[str]:
    if isinstance(plan, NothingToDo):
        return set()
    pieces = plan.operations if isinstance(plan, CompactionPlan) else plan.slices
    return {piece.partition for piece in pieces}


def written(outcome: object) -> set[str]:
    assert isinstance(outcome, Committed), outcome
    return {stat.partition for stat in outcome.metadata.stats}


def test_compaction_keeps_off_partitions_that_a_pattern_switches_off(catalog: Catalog) -> None:
    catalog.set_policy(NAME, "compaction", {"enabled": False}, pattern="2026-02-.*")
    table = catalog.load_table(NAME)
    assert partitions_of(table.services.compaction.plan()) == {NEW}
    # A base file and five logs of one partition.
    assert table.services.compaction.cost().files == 6
    assert written(table.services.compaction.run()) == {NEW}
    assert partitions_of(table.services.compaction.plan(force=True)) == set()


def test_compaction_is_not_due_if_patterns_switch_off_all_partitions(catalog: Catalog) -> None:
    catalog.set_policy(NAME, "compaction", {"enabled": False}, pattern="2026-.*")
    (choice,) = decide(catalog, ["compaction"])
    assert not choice.chosen and choice.code is DecisionReason.NOT_DUE
    assert "compaction is switched off for partitions that match '2026-.*'" in choice.reason


def test_compaction_runs_in_the_partitions_that_a_pattern_switches_on(catalog: Catalog) -> None:
    catalog.set_policy(NAME, "compaction", {"enabled": False})
    (off,) = decide(catalog, ["compaction"])
    assert off.code is DecisionReason.DISABLED
    catalog.set_policy(NAME, "compaction", {"enabled": True}, pattern=NEW)
    (choice,) = decide(catalog, ["compaction"])
    assert choice.chosen, choice.reason
    assert written(catalog.load_table(NAME).services.compaction.run()) == {NEW}


def test_pending_plan_is_dropped_and_planned_again_without_partitions_switched_off_since(catalog: Catalog) -> None:
    planned = catalog.load_table(NAME).services.compaction.schedule()
    assert not isinstance(planned, NothingToDo)
    catalog.set_policy(NAME, "compaction", {"enabled": False}, pattern=OLD)
    table = catalog.load_table(NAME)
    before = table.scan().to_arrow().sort_by("id")
    assert written(table.services.compaction.run()) == {NEW}
    assert table.timeline.find(planned.requested) is None
    assert table.scan().to_arrow().sort_by("id").select(["id", "v"]) == before.select(["id", "v"])


def test_run_that_names_a_partition_switched_off_reports_it(catalog: Catalog) -> None:
    catalog.set_policy(NAME, "compaction", {"enabled": False}, pattern=OLD)
    table = catalog.load_table(NAME)
    command = ServiceCommand(service="compaction", table=NAME, partitions=(OLD,), force=True)
    report = run_service("compaction", table, command)
    assert report.status is JobStatus.NOTHING_TO_DO
    assert report.reason == f"compaction is switched off by a policy for partition {OLD!r}"


def test_compaction_threshold_of_a_pattern_applies_to_its_partitions(catalog: Catalog) -> None:
    catalog.set_policy(NAME, "compaction", {"strategy": "LogFileNumBased", "log_files_threshold": 9})
    assert partitions_of(catalog.load_table(NAME).services.compaction.plan()) == set()
    catalog.set_policy(NAME, "compaction", {"log_files_threshold": 5}, pattern=OLD)
    assert partitions_of(catalog.load_table(NAME).services.compaction.plan()) == {OLD}


def test_log_compaction_honours_patterns_and_partitions(catalog: Catalog) -> None:
    services = catalog.load_table(NAME).services
    assert partitions_of(services.log_compaction.plan(partitions=[OLD])) == {OLD}
    catalog.set_policy(NAME, "logcompaction", {"enabled": False}, pattern=OLD)
    assert partitions_of(catalog.load_table(NAME).services.log_compaction.plan()) == {NEW}
    catalog.set_policy(NAME, "logcompaction", {"log_blocks_threshold": 6}, pattern=NEW)
    assert partitions_of(catalog.load_table(NAME).services.log_compaction.plan()) == set()


def test_clustering_settings_of_a_pattern_apply_to_its_partitions(catalog: Catalog, copied: str) -> None:
    catalog.set_policy(copied, "clustering", {"enabled": False}, pattern=OLD)
    table = catalog.load_table(copied)
    assert partitions_of(table.services.clustering.plan()) == {NEW}
    catalog.set_policy(copied, "clustering", {"enabled": True, "target_file_bytes": 1}, pattern=OLD)
    table = catalog.load_table(copied)
    plan = table.services.clustering.plan()
    assert isinstance(plan, ClusteringPlan)
    # With one byte per file no group has fewer files than before, so only the other partition is planned.
    assert partitions_of(plan) == {NEW}
    size = max(path.stat().st_size for path in Path(table.location).glob(f"{OLD}/*.parquet"))
    catalog.set_policy(copied, "clustering", {"target_file_bytes": 2 * size}, pattern=OLD)
    plan = catalog.load_table(copied).services.clustering.plan()
    assert isinstance(plan, ClusteringPlan)
    assert {group.partition: group.outputs for group in plan.groups} == {OLD: 2, NEW: 1}


def test_clustering_writes_files_of_the_size_of_the_pattern(catalog: Catalog, copied: str) -> None:
    catalog.set_policy(copied, "clustering", {"sort_columns": "v"})
    catalog.set_policy(copied, "clustering", {"target_file_bytes": 1}, pattern=OLD)
    outcome = catalog.load_table(copied).services.clustering.run()
    assert isinstance(outcome, Committed), outcome
    files = Counter(stat.partition for stat in outcome.metadata.stats)
    # 12 rows each: with one byte per file each row has a file.
    assert files == {OLD: 12, NEW: 1}


def test_ttl_keeps_partitions_that_a_pattern_switches_off(catalog: Catalog) -> None:
    catalog.set_policy(NAME, "ttl", {"max_partitions": 1})
    assert catalog.load_table(NAME).services.ttl.plan().partitions == (OLD,)
    catalog.set_policy(NAME, "ttl", {"enabled": False}, pattern=OLD)
    planned = catalog.load_table(NAME).services.ttl.plan()
    assert planned.partitions == ()
    assert planned.kept[0].reason == "ttl is switched off by a policy for this partition"


@pytest.mark.parametrize("service", SERVICES)
def test_setting_that_a_service_cannot_honour_by_pattern_is_refused_with_the_way_out(
    catalog: Catalog, service: str
) -> None:
    with pytest.raises(SettingError) as refused:
        catalog.set_policy(NAME, service, {"priority": 3}, pattern=OLD)
    assert "priority cannot be set for the partitions of a pattern" in str(refused.value)
    assert service_spec(service).pattern_advice in str(refused.value)


def test_service_without_partitions_refuses_to_be_switched_off_by_pattern(catalog: Catalog) -> None:
    with pytest.raises(SettingError, match=r"no setting of this service can.*savepoint"):
        catalog.set_policy(NAME, "clean", {"enabled": False}, pattern=OLD)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("{}", "expected a list of rules"),
        ('[{"service": "ttl"}]', "a rule has service and pattern"),
        ('[{"service": "ttl", "pattern": "("}]', "has a wrong pattern"),
        ('[{"service": "ttl", "pattern": "a", "enabled": "yes"}]', "enabled is true or false"),
    ],
)
def test_option_of_partition_rules_is_refused_with_its_problem(catalog: Catalog, text: str, problem: str) -> None:
    with pytest.raises(SettingError, match=problem):
        catalog.load_table(NAME, options={PARTITION_RULES: text})


def test_nothing_to_do_names_the_code_of_a_plan_without_candidates(catalog: Catalog) -> None:
    catalog.set_policy(NAME, "clustering", {"enabled": False}, pattern=".*")
    outcome = catalog.load_table(NAME).services.clustering.run(force=True, partitions=[OLD])
    assert isinstance(outcome, NothingToDo) and outcome.code is NothingToDoReason.NO_CANDIDATES
    assert outcome.reason == f"clustering is switched off by a policy for partition {OLD!r}"


def test_clustering_of_a_bucket_table_is_assessed_and_sorts_inside_its_buckets(
    catalog: Catalog, tmp_path: Path
) -> None:
    options = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
    table = Table.create(str(tmp_path / "buckets"), name="buckets", record_key="id", options=options)
    for number in range(4):
        table.upsert(pa.table({"id": [f"{number}-{n}" for n in range(6)], "v": [9 - number] * 6}))
    catalog.register_table("sales.buckets", table.location)
    (choice,) = decide(catalog, ["clustering"], tables=["sales.buckets"])
    assert choice.code is DecisionReason.NOT_DUE and "a plan would be empty" in choice.reason
    catalog.set_policy("sales.buckets", "clustering", {"sort_columns": "v"})
    (choice,) = decide(catalog, ["clustering"], tables=["sales.buckets"])
    assert choice.chosen, choice.reason
    before = catalog.load_table("sales.buckets").scan(["id", "v"]).to_arrow().sort_by("id")
    outcome = catalog.load_table("sales.buckets").services.clustering.run()
    assert isinstance(outcome, Committed)
    assert len(outcome.metadata.stats) == 2
    assert catalog.load_table("sales.buckets").scan(["id", "v"]).to_arrow().sort_by("id") == before


def test_service_that_does_not_apply_to_a_table_is_not_called_unreadable(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(table: object, policies: object) -> None:
        raise UnsupportedError("tables of version 6 are read only here")

    # This package does not write tables of version 6.
    monkeypatch.setattr(clustering, "require_clusterable", refuse)
    (choice,) = decide(catalog, ["clustering"])
    assert choice.code is DecisionReason.NOT_APPLICABLE
    assert choice.reason == "not applicable: tables of version 6 are read only here"
