"""How many modules of the package a small write and a small read enter; the numbers may only shrink."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType

import pyarrow as pa
import pytest

import lakehouse
from lakehouse import Table

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
    ("options", "upsert", "scan"), [({}, 153, 66), (WITHOUT_METADATA, 125, 51)], ids=["metadata", "no metadata"]
)
def test_upsert_and_scan_of_two_rows_enter_no_more_modules_than_before(
    options: Mapping[str, str], upsert: int, scan: int, tmp_path: Path
) -> None:
    table = small_table(tmp_path, options)
    writing, reading = entered(lambda: table.upsert(two_rows(9))), entered(lambda: table.scan().to_arrow())
    assert len(writing) <= upsert, sorted(writing)
    assert len(reading) <= scan, sorted(reading)


def test_entered_modules_contain_those_of_the_called_functions(tmp_path: Path) -> None:
    table = small_table(tmp_path, WITHOUT_METADATA)
    files = entered(table.refresh)
    assert {"core/table/table.py", "core/timeline/timeline_store.py"} <= files
    assert "core/operations/write/write.py" not in files
