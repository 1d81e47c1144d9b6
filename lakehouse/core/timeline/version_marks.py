"""Marks of version changes in the folder of a timeline.

    lakehouse.to_version_9.pending   a change to version 9 has begun; its content is the journal of the change
    lakehouse.to_version_9           the table was changed to version 9

The listing of a timeline also lists its marks, so the check costs no request. A process that loaded the table with
another version sees the mark, reads the properties, and loads the table again. A mark of the past is ignored: for
example, Hudi may have changed the table back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import CorruptTableError, RetryableError
from lakehouse.model.document import parse_json

_MARK = re.compile(r"lakehouse\.to_version_(\d{1,3})(\.pending)?", re.ASCII)
_VERSION = "hoodie.table.version"


class VersionChangedError(RetryableError):
    """The table was changed to another version after it was loaded; load it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionMark:
    """One mark: the version, as text, and whether the change is not complete."""

    version: str
    is_pending: bool = False

    @property
    def name(self) -> str:
        """The file name."""
        return f"lakehouse.to_version_{self.version}{'.pending' if self.is_pending else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """The content of a pending mark.

    Attributes:
        token: An id, which makes the bytes of the mark unique.
        names: The file names of the timeline that the change has copied; None until all are copied.
    """

    token: str
    names: tuple[str, ...] | None = None

    def encode(self) -> bytes:
        """Return the bytes of the mark."""
        return json.dumps({"token": self.token, "names": self.names}, indent=2).encode()


def decode_journal(data: bytes) -> Journal:
    """Return the journal in a pending mark; raise CorruptTableError for other content."""
    try:
        values = parse_json(data)
        names = values["names"]
        return Journal(token=str(values["token"]), names=None if names is None else tuple(map(str, names)))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptTableError(f"not the journal of a version change: {error}: {data[:100]!r}") from error


def marks_among(names: Iterable[str]) -> tuple[VersionMark, ...]:
    """Return the marks among the file names of a timeline folder."""
    matches = (_MARK.fullmatch(name) for name in names if name.startswith("lakehouse."))
    return tuple(VersionMark(version=match[1], is_pending=bool(match[2])) for match in matches if match is not None)


def check_marks(storage: Storage, names: Iterable[str], layout: TableLayout) -> VersionMark | None:
    """Return the mark for an incomplete change of the table, or None; `names` is a listing of the timeline.

    Raises VersionChangedError if the table does not have the version of `layout` any more.
    """
    marks = [mark for mark in marks_among(names) if mark.version != str(layout.version)]
    if not marks:
        return None
    stored = (read_properties(storage) or {}).get(_VERSION, "")
    if stored != str(layout.version):
        raise VersionChangedError(
            f"{storage.root} was changed from version {layout.version} to version {stored or '(none)'} since it was "
            "loaded; run the operation again",
            version=stored,
        )
    return next((mark for mark in marks if mark.is_pending), None)


def refuse_during_change(storage: Storage, mark: VersionMark | None, layout: TableLayout) -> None:
    """Raise RetryableError if a change of the version is not complete: only its next run may continue."""
    if mark is None:
        return
    verb = "upgrade" if int(mark.version) > layout.version else "downgrade"
    raise RetryableError(
        f"{storage.root}: a change to table version {mark.version} is not finished; wait for it, or if it failed, "
        f"finish it with `lakehouse table {verb} --table {storage.root} --to {mark.version}`, or abandon it with "
        f"--to {layout.version}",
        version=mark.version,
    )


def mark_layout(mark: VersionMark) -> TableLayout:
    """Return the layout of the version in a mark."""
    return table_layout(int(mark.version))
