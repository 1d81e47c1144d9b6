"""The public API: what `__all__` of both packages exports, and that no release breaks a program without saying so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lakehouse
from tests.support.public_api import PACKAGES, breaking_changes, public_stub
from tests.support.wheel import installed_wheel

#: The public API of the last release, which the current one is compared with.
RELEASED = Path(__file__).parent / "public_api"
PROGRAM = """
import pyarrow as pa  # type: ignore[import-untyped]
from lakehouse import Committed, ConflictError, NothingToDo, Table, load_catalog

orders = pa.table({"id": [1, 2], "day": ["2026-01-31", "2026-02-01"]})
table = Table.create("memory://orders", name="orders", record_key="id", partition_by="day", table_type="MERGE_ON_READ")
try:
    outcome: Committed | NothingToDo = table.upsert(orders, allow_empty=True)
except ConflictError as error:
    raise SystemExit(error.winner) from error
if isinstance(outcome, Committed):
    print(outcome.instant.requested, outcome.totals.rows)
rows: pa.Table = table.scan(columns=["id"], where="day = '2026-01-31'").to_arrow()
version = table.version_at("2026-01-31")
print(rows.num_rows, version.watermark)
"""
MISTAKES = """
from lakehouse import Table

Table.create("x", name="t", record_key="id", table_typ="COW")
Table.create("x", name="t", record_key="id", column_groups="price")
table = Table.open("x")
table.upsert(None, deletes_yield=True)
table.scan(columns=1)
"""
#: Lines of MISTAKES that each checker must report.
WRONG_LINES = {4, 5, 7, 8}
OPERATOR = """
from lakehouse_airflow import LakehouseOperator

LakehouseOperator(task_id="load", verb="ingest", action="run", table="orders.yaml", by_interval=True)
"""
CHECKERS = {
    "mypy": ["mypy", "--strict", "--config-file", "", "--no-incremental", "--python-executable"],
    "pyright": ["pyright", "--pythonpath"],
}


@pytest.mark.parametrize("package", PACKAGES)
def test_public_api_breaks_no_program_of_the_last_release(package: str) -> None:
    released = (RELEASED / f"{package}.txt").read_text()
    assert breaking_changes(released, public_stub(package), package) == [], (
        "deprecate the name first (docs/compatibility.md); after a release, run python -m tests.support.public_api"
    )


def test_removed_parameter_is_reported() -> None:
    released = public_stub("lakehouse")
    changed = released.replace(" as_of: str | datetime | None = None,", "", 1)
    assert changed != released
    assert breaking_changes(released, changed, "lakehouse") != []


def test_every_public_name_is_importable() -> None:
    assert sorted(lakehouse.__all__) == list(lakehouse.__all__)
    assert {name: getattr(lakehouse, name) is not None for name in lakehouse.__all__} == dict.fromkeys(
        lakehouse.__all__, True
    )
    with pytest.raises(AttributeError, match="no attribute 'Tabel'"):
        lakehouse.Tabel  # noqa: B018


@pytest.fixture(scope="module")
def python_with_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_program_of_a_user_is_type_checked_against_the_wheel(
    checker: str, python_with_wheel: Path, tmp_path: Path
) -> None:
    for name, source in (("program", PROGRAM), ("operator", OPERATOR), ("mistakes", MISTAKES)):
        (tmp_path / f"{name}_of_user.py").write_text(source)

    def check(*names: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", *CHECKERS[checker], str(python_with_wheel)]
        # Neither the sources nor their editable install may be found in place of the wheel.
        environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
        command += [f"{name}_of_user.py" for name in names]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        if checker == "pyright" and not done.stdout:
            pytest.skip(f"missing: pyright, which npm provides: {done.stderr[-500:]}")
        return done

    right, wrong = check("program", "operator"), check("mistakes")
    assert right.returncode == 0, right.stdout
    lines = re.findall(r"mistakes_of_user\.py:(\d+).* error: ", wrong.stdout)
    assert {int(line) for line in lines} == WRONG_LINES, wrong.stdout
