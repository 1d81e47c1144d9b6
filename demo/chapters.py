"""A chapter of the demo's story: one thing that happens to a table, with its numbers before and after."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One thing that happened to a table.

    Attributes:
        title: The subject: "Small files".
        table: The table.
        measure: The thing that is counted: "files to open".
        before: Its value before, as text.
        after: Its value after.
        text: One sentence about what happened.
    """

    title: str
    table: str
    measure: str
    before: str
    after: str
    text: str


def read_chapters(path: Path) -> tuple[Chapter, ...]:
    """Return the chapters of an earlier run of the demo; empty without one."""
    if not path.exists():
        return ()
    return tuple(Chapter(**entry) for entry in json.loads(path.read_text(encoding="utf-8")))


def write_chapters(path: Path, chapters: Sequence[Chapter]) -> None:
    """Write the chapters, so that a second run of the demo shows them, too."""
    path.write_text(json.dumps([asdict(chapter) for chapter in chapters], indent=1), encoding="utf-8")
