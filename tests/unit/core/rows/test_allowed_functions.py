"""Functions that a table names: loaded only if the caller or the deployment allows them, and never from a table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.planning.conflict import strategy_named
from lakehouse.core.rows.custom_merger import merge_records
from lakehouse.core.rows.log_entries import ColumnSets
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.merge import MERGER_PROPERTY, MergeMode, MergeRule
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.declared_tables import open_declared_table
from lakehouse.spec.function import ALLOWED_FUNCTIONS, deployment_functions, is_allowed, named_function
from lakehouse.spec.table.table_spec import parse_spec

ROOT = Path(__file__).resolve().parents[4]
GOOD = "tests.support.mergers:add_up"
ROWS = pa.table({"id": ["a", "b"], "n": [1, 2]})
# Code that runs when it is imported, and writes a file beside it.
CODE = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
def merge(older, newer):
    return newer
"""


def foreign_table(location: Path, kind: str, merger: str = "planted:merge") -> Path:
    """Create a table with two commits whose properties name `merger`, with a module `planted` inside it."""
    table = Table.create(str(location), name="t", record_key=["id"], table_type=kind, merger=GOOD)
    for _ in range(2):
        table.upsert(ROWS)
    rename_merger(location, merger)
    (location / "planted.py").write_text(CODE)
    return location


def rename_merger(location: Path, merger: str) -> None:
    path = location / ".hoodie" / "hoodie.properties"
    path.write_bytes(render_properties(parse_properties(path.read_bytes()) | {MERGER_PROPERTY: merger}))


@pytest.fixture
def cwd_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the working directory on sys.path in each way in which Python does it."""
    location = tmp_path / "foreign"
    location.mkdir()
    monkeypatch.chdir(location)
    monkeypatch.setattr(sys, "path", ["", ".", str(location), *sys.path])
    monkeypatch.delenv(ALLOWED_FUNCTIONS, raising=False)
    return location


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_foreign_table_is_described_validated_and_registered_without_running_its_code(
    kind: str, cwd_first: Path, tmp_path: Path
) -> None:
    location = str(foreign_table(cwd_first, kind))
    table = Table.open(location)
    assert table.describe().record_key == ("id",)
    report = table.validate(deep=True)
    unchecked = [finding for finding in report.findings if finding.invariant == "unchecked"]
    assert len(unchecked) == (kind == "MERGE_ON_READ")
    assert len(table.timeline) == 2 and table.partitions() == ("",)
    assert table.scan(["n"], read_optimized=True).count() == 2
    with load_catalog(f"sqlite:///{tmp_path / 'catalog.db'}") as catalog:
        catalog.register_table("other.t", location)
        assert catalog.load_table("other.t").health().file_groups == 1
        with pytest.raises(UnsupportedError, match="planted:merge"):
            catalog.load_table("other.t").upsert(ROWS)
    assert not (cwd_first / "planted.ran").exists() and "planted" not in sys.modules


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_write_that_needs_a_merger_of_the_table_is_refused_with_the_ways_to_allow_it(
    kind: str, cwd_first: Path
) -> None:
    table = Table.open(str(foreign_table(cwd_first, kind)))
    with pytest.raises(UnsupportedError, match=r"'planted:merge', which the table names.*LAKEHOUSE_ALLOWED_FUNCTIONS"):
        table.upsert(ROWS)
    if kind == "MERGE_ON_READ":
        with pytest.raises(UnsupportedError, match="'planted:merge', which the table names"):
            table.scan().to_arrow()
        with pytest.raises(UnsupportedError, match="'planted:merge', which the table names"):
            table.services.compaction.run(force=True)
    assert not (cwd_first / "planted.ran").exists()


def test_allowed_function_is_never_loaded_from_the_working_directory(cwd_first: Path) -> None:
    (cwd_first / "planted.py").write_text(CODE)
    with pytest.raises(UserError, match=r"merger 'planted:merge' cannot be loaded \(No module named 'planted'"):
        named_function("planted:merge", what="merger", hint="")
    with pytest.raises(UserError, match=r"conflict strategy 'planted:merge' cannot be loaded"):
        strategy_named("planted:merge")
    assert not (cwd_first / "planted.ran").exists()


def test_working_directory_is_allowed_if_the_deployment_names_it(
    cwd_first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cwd_first / "planted_here.py").write_text(CODE)
    monkeypatch.setenv("LAKEHOUSE_MODULES", f"/elsewhere:{cwd_first}")
    assert named_function("planted_here:merge", what="merger", hint="")(1, 2) == 2


def test_allowed_function_is_never_loaded_from_inside_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = foreign_table(tmp_path / "lake" / "orders", "COPY_ON_WRITE")
    package = location / "inner"
    package.mkdir()
    (package / "planted.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(location))
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("planted:merge", "inner.planted:merge", "lake.orders.planted:merge"):
        with pytest.raises(UserError, match=f"merger '{name}' cannot be loaded"):
            named_function(name, what="merger", hint="")
    assert list(location.rglob("*.ran")) == []


def test_spec_argument_and_deployment_each_allow_the_merger_they_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOWED_FUNCTIONS, raising=False)
    location = str(foreign_table(tmp_path / "t", "MERGE_ON_READ", GOOD))
    with pytest.raises(UnsupportedError, match=GOOD):
        Table.open(location, allowed_functions=["tests.support.mergers:other"]).scan().to_arrow()
    sums = [2, 4]
    assert Table.open(location, allowed_functions=GOOD).scan(["n"]).to_arrow()["n"].to_pylist() == sums
    text = f"table: t\nlocation: {location}\ntype: MERGE_ON_READ\nrecord_key: [id]\n"
    for merging, allowed in (("", False), (f"merge_mode: CUSTOM\nmerger: {GOOD}\n", True)):
        spec = parse_spec(text + merging, source="test")
        table = open_declared_table(spec, {}, Env(storage=open_storage(location)))
        assert table is not None and table.config.merge_rule.merger_allowed is allowed
    monkeypatch.setenv(ALLOWED_FUNCTIONS, "other.module:run, tests.support.*")
    assert Table.open(location).scan(["n"]).to_arrow()["n"].to_pylist() == sums


def test_allowed_table_whose_properties_name_another_function_later_is_refused(tmp_path: Path) -> None:
    location = foreign_table(tmp_path / "t", "MERGE_ON_READ", GOOD)
    table = Table.open(str(location), allowed_functions=[GOOD])
    table.upsert(ROWS)
    rename_merger(location, "shutil:rmtree")
    with pytest.raises(UnsupportedError, match="'shutil:rmtree', which the table names"):
        table.upsert(ROWS)
    with pytest.raises(UnsupportedError, match="'shutil:rmtree', which the table names"):
        table.scan().to_arrow()


def test_worker_refuses_a_rule_whose_merger_was_not_allowed() -> None:
    rule = MergeRule(mode=MergeMode.CUSTOM, merger=GOOD)
    with pytest.raises(UnsupportedError, match=GOOD):
        merge_records(pa.table({"n": [1]}), pa.table({"n": [1]}), rule, ColumnSets())


def test_patterns_match_a_package_and_nothing_beside_it() -> None:
    allowed = deployment_functions({ALLOWED_FUNCTIONS: " a.b.*, c:run ,, .*, * "})
    covered = ["a.b:f", "a.b.c:f", "a.b.c.d:g", "c:run"]
    assert [name for name in [*covered, "a:f", "a.bc:f", "c:other", "c.d:run", "d:f"] if is_allowed(name, allowed)] == (
        covered
    )


def test_python_m_lakehouse_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text(CODE)
    (tmp_path / "pyarrow.py").write_text(CODE)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-m", "lakehouse", "table", "describe", "--table", "."]
    done = subprocess.run(run, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == UserError.exit_code and "is not a Hudi table" in done.stderr
    assert list(tmp_path.glob("*.ran")) == []
