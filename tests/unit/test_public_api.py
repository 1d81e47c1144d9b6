"""The public API: what `__all__` of both packages exports, and that no release breaks a program without saying so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lakehouse
from tests.support.public_api import PACKAGES, ROOT, breaking_changes, public_stub

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
MISTAKE = 'from lakehouse import Table\n\nTable.create("x", name="t", record_key="id", table_typ="COW")\n'


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


@pytest.mark.slow
def test_program_of_a_user_is_type_checked(tmp_path: Path) -> None:
    def checked(source: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(source)
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--follow-imports", "silent"]
        environment = {"MYPYPATH": f"{ROOT}:{ROOT / 'plugins'}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
        return subprocess.run(
            [*command, "program.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    right, wrong = checked(PROGRAM), checked(MISTAKE)
    assert right.returncode == 0, right.stdout
    assert 'Unexpected keyword argument "table_typ" for "create" of "Table"' in wrong.stdout
