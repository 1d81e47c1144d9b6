"""Tombstones: records of deletes. They cause later writes to drop older rows with the deleted keys.

    .hoodie/.tombstones/<instant>_<until>_<token>.parquet      deletes of one commit, or several such files merged

Readers do not use them. A commit lists all valid tombstone files in its extra metadata, so the files follow the
timeline: files of a write that was not committed, or was rolled back, are not valid. Concurrent commits do not list
each other's files; therefore the valid files are computed from several commits:

    valid = files of the commit with the last `up_to`  +  files of later commits  -  overwritten partitions

Files of similar size are merged, `_FANOUT` at a time, so their number is logarithmic in the number of rows. Files with
`_MERGED_ROWS` or more rows are not merged again, which bounds the time of a write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import REWRITES, CommitMetadata, Operation
from lakehouse.model.document import parse_json
from lakehouse.model.instant import Action, Instant

#: Key in the extra metadata of a commit: the tombstone files that are valid after it.
TOMBSTONES_KEY = "lakehouse.tombstones"
#: Key in the extra metadata of a commit: the number of rows that were dropped because they were older than a tombstone.
LATE_ROWS_KEY = "lakehouse.late_rows_dropped"
TOMBSTONES = ".hoodie/.tombstones"
_NAME = re.compile(r"(\d{17,20})_(\d{1,15})_([0-9a-z-]+)\.parquet", re.ASCII)
#: The latest time that fits into a file name, in milliseconds since 1970.
LATEST_MS = 10**15 - 1
_FANOUT = 8
_MERGED_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneFile:
    """A tombstone file: its name, the number of deletes, and the first and last of their partitions."""

    name: str
    rows: int
    first: str
    last: str

    @property
    def path(self) -> str:
        """The path relative to the table."""
        return f"{TOMBSTONES}/{self.name}"

    @property
    def instant(self) -> str:
        """The requested time of the commit that wrote the file; its deletes may be older."""
        return _parts(self.name)[0]

    @property
    def until_ms(self) -> int:
        """Time at which the last delete in the file expires, in milliseconds since 1970."""
        return int(_parts(self.name)[1])

    def covers(self, partitions: Sequence[str]) -> bool:
        """Return whether the file may contain deletes for one of the partitions."""
        return any(self.first <= partition <= self.last for partition in partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstones:
    """The tombstone files that are valid after all writes completed up to `up_to`.

    Attributes:
        overwritten: Partitions that were overwritten, with the instant: only later deletes of the partition are valid.
        overwritten_all: The instant that overwrote the whole table: only later deletes are valid.
        is_complete: Whether a commit listed all earlier files, so that no older commit has to be read.
    """

    up_to: str = ""
    files: tuple[TombstoneFile, ...] = ()
    overwritten: Mapping[str, str] = field(default_factory=dict)
    overwritten_all: str = ""
    is_complete: bool = False

    def counting(self, now_ms: int) -> Tombstones:
        """Return the tombstones without files in which all deletes have expired or were overwritten."""
        files = tuple(file for file in self.files if file.until_ms > now_ms and not self._is_overwritten(file))
        overwritten = {p: at for p, at in self.overwritten.items() if any(file.covers([p]) for file in files)}
        return replace(
            self, files=files, overwritten=overwritten, overwritten_all=self.overwritten_all if files else ""
        )

    def _is_overwritten(self, file: TombstoneFile) -> bool:
        of_one = self.overwritten.get(file.first, "") if file.first == file.last else ""
        return file.instant <= max(of_one, self.overwritten_all)


def tombstone_name(instant: str, until_ms: int, token: str) -> str:
    """Return the name of a file whose last delete expires at `until_ms`."""
    return f"{instant}_{until_ms}_{token}.parquet"


def forgotten_at(name: str) -> int | None:
    """Return the time at which a file's last delete expires, in milliseconds; None for other file names."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[2])


def known_tombstones(newest_first: Iterable[tuple[Instant, CommitMetadata]], before: Tombstones) -> Tombstones:
    """Return `before` combined with the files of further writes, newest first.

    It stops at the first commit after which no older commit can add a file. Raises CorruptTableError if a commit lists
    a file that has no tombstone file name.
    """
    files, overwritten, overwritten_all, base = (
        {f.name: f for f in before.files},
        dict(before.overwritten),
        before.overwritten_all,
        before,
    )
    for instant, metadata in newest_first:
        if base.is_complete and instant.completion <= base.up_to:
            break
        partitions = overwritten_partitions(instant, metadata)
        if partitions is None:
            overwritten_all = max(overwritten_all, instant.requested)
        for partition in partitions or ():
            overwritten[partition] = max(overwritten.get(partition, ""), instant.requested)
        tombstones = decode_tombstones(instant, metadata)
        if tombstones is not None:
            files |= {file.name: file for file in added_files(tombstones, instant)}
            base = tombstones if not base.is_complete or tombstones.up_to > base.up_to else base
    if base is not before:
        files = {file.name: file for file in base.files} | files
        overwritten_all = max(overwritten_all, base.overwritten_all)
        for partition, at in base.overwritten.items():
            overwritten[partition] = max(overwritten.get(partition, ""), at)
    return Tombstones(
        up_to=base.up_to,
        files=tuple(files[name] for name in sorted(files)),
        overwritten=overwritten,
        overwritten_all=overwritten_all,
        is_complete=base.is_complete,
    )


def overwritten_partitions(instant: Instant, metadata: CommitMetadata) -> frozenset[str] | None:
    """Return the partitions that a write overwrote (None means all). Their earlier tombstones are no longer valid."""
    if instant.action is not Action.REPLACECOMMIT or metadata.operation in REWRITES:
        return frozenset()
    if metadata.operation == Operation.INSERT_OVERWRITE_TABLE:
        return None
    return frozenset({*metadata.replaced, *(stat.partition for stat in metadata.stats)})


def added_files(tombstones: Tombstones, instant: Instant) -> tuple[TombstoneFile, ...]:
    """Return the files that the commit at `instant` wrote, merged files included."""
    return tuple(file for file in tombstones.files if file.instant == instant.requested)


def files_to_merge(files: Sequence[TombstoneFile]) -> list[tuple[TombstoneFile, ...]]:
    """Return groups of files with similar row counts; each group is merged into one file."""
    tiers: dict[int, list[TombstoneFile]] = {}
    for file in (file for file in files if file.rows < _MERGED_ROWS):
        tier = 0
        while file.rows >= _FANOUT ** (tier + 1):
            tier += 1
        tiers.setdefault(tier, []).append(file)
    return [tuple(tiers[tier]) for tier in sorted(tiers) if len(tiers[tier]) >= _FANOUT]


def encode_tombstones(tombstones: Tombstones) -> str:
    """Return the value for the extra metadata of a commit."""
    files = [[file.name, file.rows, file.first, file.last] for file in tombstones.files]
    return json.dumps(
        {
            "up_to": tombstones.up_to,
            "files": files,
            "wiped": dict(tombstones.overwritten),
            "wiped_all": tombstones.overwritten_all,
        }
    )


def decode_tombstones(instant: Instant, metadata: CommitMetadata) -> Tombstones | None:
    """Return the tombstone files that a commit lists, or None if it lists none; raise CorruptTableError if invalid."""
    text = metadata.extra.get(TOMBSTONES_KEY)
    if not text:
        return None
    try:
        document = parse_json(text)
        files = tuple(TombstoneFile(name=name, rows=int(n), first=a, last=z) for name, n, a, z in document["files"])
        overwritten = {str(partition): str(at) for partition, at in document["wiped"].items()}
        up_to, overwritten_all = str(document["up_to"]), str(document["wiped_all"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptTableError(
            f"{TOMBSTONES_KEY} of the commit {instant.requested} cannot be read: {error}",
            instant=str(instant),
        ) from error
    for file in files:
        _parts(file.name)
    return Tombstones(
        up_to=up_to, files=files, overwritten=overwritten, overwritten_all=overwritten_all, is_complete=True
    )


def _parts(name: str) -> tuple[str, str, str]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise CorruptTableError(f"a commit names the tombstone file {name!r}, which is not a valid name", path=name)
    return match[1], match[2], match[3]
