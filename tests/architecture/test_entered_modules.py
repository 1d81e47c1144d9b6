"""How many modules a small write and a small read enter, and a read imports; the numbers may only shrink."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

import lakehouse
from lakehouse import Table
from lakehouse.core.table import operations
from tests.architecture.sources import ROOT

PACKAGE = str(Path(lakehouse.__file__).parent)
WITHOUT_METADATA = {"hoodie.metadata.enable": "false"}


def entered(action: Callable[[], object]) -> set[str]:
    """Return the modules of the package whose functions an action calls, in all threads that it starts."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]
    return {str(Path(file).relative_to(PACKAGE)) for file in files}


def small_table(folder: Path, options: Mapping[str, str]) -> Table:
    """Return a table of two rows that was written twice, so that this process knows it."""
    table = Table.create(
        str(folder / "table"), name="small", record_key=["id"], partition_by=["p"], ordering=["ts"], options=options
    )
    for number in range(2):
        table.upsert(two_rows(number))
    table.scan().to_arrow()
    return table


def two_rows(ts: int) -> pa.Table:
    return pa.table({"id": ["a", "b"], "p": ["x", "y"], "ts": [ts, ts], "v": [1, 2]})


@pytest.mark.parametrize(
    ("options", "upsert", "scan", "opened"),
    [({}, 161, 61, 76), (WITHOUT_METADATA, 133, 48, 62)],
    ids=["metadata", "no metadata"],
)
# parameters: the allowed numbers of modules; `opened` is the number of an opened table that is scanned
def test_upsert_and_scan_of_two_rows_enter_no_more_modules_than_before(
    options: Mapping[str, str], upsert: int, scan: int, opened: int, tmp_path: Path
) -> None:
    table = small_table(tmp_path, options)
    writing, reading = entered(lambda: table.upsert(two_rows(9))), entered(lambda: table.scan().to_arrow())
    assert len(writing) <= upsert, sorted(writing)
    assert len(reading) <= scan, sorted(reading)
    opening = entered(lambda: Table.open(str(tmp_path / "table")).scan().to_arrow())
    assert len(opening) <= opened, sorted(opening)


def test_entered_modules_contain_those_of_the_called_functions(tmp_path: Path) -> None:
    table = small_table(tmp_path, WITHOUT_METADATA)
    files = entered(table.refresh)
    assert {"core/table/writes.py", "core/timeline/timeline_store.py"} <= files
    assert "core/operations/write/write.py" not in files


def test_first_read_of_a_process_imports_no_writes_and_no_services(tmp_path: Path) -> None:
    small_table(tmp_path, {})
    script = f"""
import json, sys
from lakehouse import Table
assert Table.open({str(tmp_path / "table")!r}).scan().to_arrow().num_rows == 2
print(json.dumps([name for name in sys.modules if name.partition(".")[0] in ("lakehouse", "yaml", "sqlalchemy")]))
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, text=True)
    imported = set(json.loads(run.stdout))
    unneeded = {name for name in imported if name.startswith(("lakehouse.spec.table.table_spec", "yaml", "sqlalchemy"))}
    groups = ("write", "services", "undo", "validate", "metadata", "placement")
    unneeded |= {name for name in imported if name.startswith(tuple(f"lakehouse.core.operations.{g}" for g in groups))}
    assert unneeded == set()
    assert len(imported) <= 332, sorted(imported)


def test_every_operation_of_a_table_is_importable_by_its_name() -> None:
    assert sorted(operations.__all__) == list(operations.__all__)
    assert [name for name in operations.__all__ if getattr(operations, name).__name__ != name] == []
    with pytest.raises(AttributeError, match="no attribute 'wirte'"):
        operations.wirte  # noqa: B018
