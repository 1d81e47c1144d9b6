"""Files and texts of job reports."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from lakehouse.spec.contracts.job import JobReason, JobReport
from lakehouse.spec.private_files import make_parents


def write_report(path: Path, report: JobReport) -> None:
    """Write the report atomically, so that a reader never sees a part of it."""
    make_parents(path.parent)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # A new file of mode 0600 with a name that no other process can predict.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(report.to_json())
    os.replace(temporary, path)


def describe(report: JobReport) -> str:
    """Return the report for people: its JSON on several lines, without empty fields."""
    empty: tuple[object, ...] = (None, "", {}, JobReason.NONE)
    mapping = {key: value for key, value in report.to_mapping().items() if value not in empty}
    return json.dumps(mapping, indent=2)
