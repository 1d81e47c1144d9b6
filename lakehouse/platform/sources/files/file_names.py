"""Choose files by ascending names: in a large landing zone, only names after the passed names are listed.

    names   ............ after | the last names; each one is in `taken` if it was read        | ... new names
                passed         | listed by each run                                            | read

A file whose name lies among the last names is read, whenever it arrives. A name up to `after` was passed: regular runs
do not list a file that arrives there later. Once a day a run lists all names, and reports files that arrived after
their name was passed. Such a file is newer than every file of the listing that passed its name, because a store sets a
file's time on arrival.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.document import parse_json
from lakehouse.platform.sources.files.file_checkpoint import Checkpoint, Entry, SourceFile

VERSION = 2
#: The number of last names that every run lists again: one page of a listing.
RECENT = 1000
#: Steps of `passed` that a checkpoint keeps.
_MOST_STEPS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NameCheckpoint:
    """The names that commits have passed, and the files after these names that commits have read.

    Attributes:
        root: The folder of the names.
        after: All names up to this one were passed; empty for none.
        taken: The files after it that were read.
        passed: By ascending name: the newest file time in the listing that passed the names up to it.
        checked_ms: The time of the newest file when all names were listed; 0 for never.
    """

    root: str
    after: str = ""
    taken: frozenset[Entry] = frozenset()
    passed: tuple[tuple[str, int], ...] = ()
    checked_ms: int = 0

    def has(self, file: SourceFile) -> bool:
        """Return whether a file was read, or its name was passed."""
        return file.path <= self.after or file.entry in self.taken

    def is_late(self, file: SourceFile) -> bool:
        """Return whether a file arrived after its name was passed."""
        times = (newest for name, newest in self.passed if file.path <= name)
        return file.path <= self.after and file.modified_ms > next(times, file.modified_ms)

    def next(
        self, listed: Iterable[SourceFile], chosen: Iterable[SourceFile], *, lists_all: bool = False
    ) -> NameCheckpoint:
        """Return the checkpoint after a run.

        Args:
            listed: The files after `after`, or all files.
            chosen: The files that the run reads.
            lists_all: Whether `listed` contains all files.
        """
        files = sorted(listed, key=lambda file: file.path)
        newest = max((file.modified_ms for file in files), default=0)
        taken = self.taken | {file.entry for file in chosen}
        names: list[SourceFile] = []
        for file in files:
            if file.path <= self.after:
                continue
            if file.entry not in taken:
                break  # a limit leaves this file for a later run
            names.append(file)
        after = names[-RECENT - 1].path if len(names) > RECENT else self.after
        passed = () if lists_all else self.passed
        if after and (lists_all or after != self.after):
            passed = (*passed, (after, newest))
        while len(passed) > _MOST_STEPS:
            # Without its predecessor, a step counts names as passed later than they were, so no file is reported as
            # late by mistake.
            passed = (*passed[1:_MOST_STEPS:2], *passed[_MOST_STEPS:])
        return NameCheckpoint(
            root=self.root,
            after=after,
            taken=frozenset(file.entry for file in files if file.path > after and file.entry in taken),
            passed=passed,
            checked_ms=newest if lists_all else self.checked_ms,
        )

    def to_json(self) -> str:
        """Return the checkpoint as one line of JSON."""
        return json.dumps(
            {
                "version": VERSION,
                "root": self.root,
                "after": self.after,
                "taken": parse_json(Checkpoint(taken=self.taken).to_json()),
                "passed": self.passed,
                "checked_ms": self.checked_ms,
            }
        )


def name_checkpoint(text: str | None, root: str) -> tuple[NameCheckpoint, Checkpoint]:
    """Return a folder's checkpoint by names, and the checkpoint by times if the table had it before.

    Names of another folder are not compared; its files count as read.
    """
    if text is None:
        return NameCheckpoint(root=root), Checkpoint()
    value = _parsed(text)
    if value.get("version") != VERSION:
        return NameCheckpoint(root=root), Checkpoint.from_json(text)
    try:
        taken = Checkpoint.from_json(json.dumps(value["taken"]))
        steps = tuple((str(name), int(newest)) for name, newest in value["passed"])
        names = NameCheckpoint(
            root=str(value["root"]),
            after=str(value["after"]),
            taken=taken.taken,
            passed=steps,
            checked_ms=int(value["checked_ms"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptTableError(
            f"the ingest checkpoint in the last commit is unreadable ({error!r}): {text[:120]!r}"
        ) from error
    return (names, Checkpoint()) if names.root == root else (NameCheckpoint(root=root), taken)


def refuse_names(text: str | None, table: str) -> None:
    """Raise UserError for a checkpoint by names or notifications, which a listing by times cannot continue."""
    if text is not None and _parsed(text).get("version") in (VERSION, VERSION + 1):
        raise UserError(
            f"table {table}: its checkpoint was written with ascending_names or notifications. Keep the setting in "
            "'ingest', or run once with --full-refresh, which reads all files again",
            table=table,
        )


def _parsed(text: str) -> dict[str, Any]:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise CorruptTableError(f"the ingest checkpoint in the last commit is unreadable: {text[:120]!r}") from error
    return value if isinstance(value, dict) else {}
