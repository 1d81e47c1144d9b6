"""A bootstrap with copied rows whose process is killed by SIGKILL, at several steps, and its continuation."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lakehouse import Table, UserError
from lakehouse.core.table import bootstrap as module
from tests.support.parquet_folders import regions

#: Runs the bootstrap, and kills the process at the n-th call of a function of a module.
PROGRAM = """
import importlib, json, os, signal, sys
from lakehouse import Table
from lakehouse.core.table import bootstrap as module

location, source, owner, name, calls = json.loads(sys.argv[1])
module._COPY_BYTES = 1
if name:
    holder = importlib.import_module(owner)
    original, left = getattr(holder, name), [calls]

    def counted(*arguments, **keywords):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **keywords)

    setattr(holder, name, counted)
Table.bootstrap(
    location, source=source, name="orders", record_key="id", ordering="ts", mode="full",
    options={"hoodie.metadata.enable": "true", "hoodie.metadata.index.column.stats.enable": "false"},
)
"""
MODULE = module.__name__
#: A kill before the second of two commits, and one after the copies.
STEPS = {
    "commit of the second copy": ("lakehouse.core.operations.write.write", "complete_commit", 2),
    "metadata table": (MODULE, "rebuild_metadata", 1),
}


def start(location: Path, source: Path, step: tuple[str, str, int] = ("", "", 0)) -> int:
    """Run the bootstrap in a process, and return its exit code."""
    arguments = json.dumps([str(location), str(source), *step])
    return subprocess.run([sys.executable, "-c", PROGRAM, arguments], check=False).returncode


def test_killed_copy_is_invisible_and_continued_without_repeated_rows(tmp_path: Path) -> None:
    source, location = regions(tmp_path / "source"), tmp_path / "table"
    for name, step in STEPS.items():
        assert start(location, source, step) == -signal.SIGKILL, name
        with pytest.raises(UserError, match="is not a Hudi table"):
            Table.open(location)
    assert start(location, source) == 0
    table = Table.open(location)
    rows = table.scan(columns=["id", "amount"]).to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": f"k{number:04d}", "amount": number} for number in range(100)]
    assert len(table.timeline.writes()) == 2
    assert not any(table.timeline.where(pending=True))
    assert table.validate(deep=True).findings == ()
    named = {stat.path for _, metadata in table.commits() for stat in metadata.stats}
    stored = {str(file.relative_to(location)) for file in location.glob("region=*/*.parquet")}
    assert stored == named, "no copy left files of its failed attempt"
