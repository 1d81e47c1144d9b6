"""Tombstones: deletes that are remembered beside the table, so that older rows of their keys stay away.

    .hoodie/.tombstones/<instant>_<until>_<token>.parquet      deletes of one commit, or several such files merged

Readers of the table know nothing of them. A commit names in its extra metadata all files that count after it, so they
follow the timeline: those of a write that was not committed, or is undone, do not count. What commits that ran at the
same time did not know of each other is found by reading each of them:

    known = what the commit tells that knew most, as of `up_to`  +  what later commits added  -  partitions wiped since

Files of about the same size are merged, `_FANOUT` at a time, so their number grows with the logarithm of the rows until
a file holds `_MERGED_ROWS`; larger ones stay as they are, so that no write waits for long.
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

#: Extra metadata of a commit: the files of tombstones that count after it.
TOMBSTONES_KEY = "lakehouse.tombstones"
#: Extra metadata of a commit: rows of its batch that were older than a remembered delete, and were left out.
LATE_ROWS_KEY = "lakehouse.late_rows_dropped"
TOMBSTONES = ".hoodie/.tombstones"
_NAME = re.compile(r"(\d{17,20})_(\d{1,15})_([0-9a-z-]+)\.parquet", re.ASCII)
#: The last time that a file's name can tell.
LATEST_MS = 10**15 - 1
_FANOUT = 8
_MERGED_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TombstoneFile:
    """One file: its bare name, how many deletes it holds, and the first and the last partition that they are of."""

    name: str
    rows: int
    first: str
    last: str

    @property
    def path(self) -> str:
        """Where the file is, relative to the table."""
        return f"{TOMBSTONES}/{self.name}"

    @property
    def instant(self) -> str:
        """The requested time of the commit that wrote the file; its deletes may be older."""
        return _parts(self.name)[0]

    @property
    def until_ms(self) -> int:
        """When the last of its deletes is forgotten, in milliseconds since 1970."""
        return int(_parts(self.name)[1])

    def covers(self, partitions: Sequence[str]) -> bool:
        """Return whether it may hold deletes of one of these partitions."""
        return any(self.first <= partition <= self.last for partition in partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstones:
    """The files that count after all writes completed up to `up_to`.

    Deletes of a partition in `wiped` count only if their instant is later than that of the wipe, and so do all deletes
    after `wiped_all`. `is_complete`: a commit told of all before it, so no older one need be asked.
    """

    up_to: str = ""
    files: tuple[TombstoneFile, ...] = ()
    wiped: Mapping[str, str] = field(default_factory=dict)
    wiped_all: str = ""
    is_complete: bool = False

    def counting(self, now_ms: int) -> Tombstones:
        """Return them without files whose deletes are all forgotten or wiped, and without wipes of nothing."""
        files = tuple(file for file in self.files if file.until_ms > now_ms and not self._is_wiped(file))
        wiped = {p: at for p, at in self.wiped.items() if any(file.covers([p]) for file in files)}
        return replace(self, files=files, wiped=wiped, wiped_all=self.wiped_all if files else "")

    def _is_wiped(self, file: TombstoneFile) -> bool:
        of_one = self.wiped.get(file.first, "") if file.first == file.last else ""
        return file.instant <= max(of_one, self.wiped_all)


def tombstone_name(instant: str, until_ms: int, token: str) -> str:
    """Return the bare name of a file whose last delete is forgotten at `until_ms`."""
    return f"{instant}_{until_ms}_{token}.parquet"


def forgotten_at(name: str) -> int | None:
    """Return when the last delete of a file of this name is forgotten, None if the name is none of a tombstone file."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[2])


def known_tombstones(newest_first: Iterable[tuple[Instant, CommitMetadata]], known: Tombstones) -> Tombstones:
    """Return `known` with these writes in it, the newest first; it ends where what they tell of others covers the rest.

    Raises CorruptTableError for a commit whose files have names that tombstone files do not have.
    """
    files, wiped, wiped_all, base = {f.name: f for f in known.files}, dict(known.wiped), known.wiped_all, known
    for instant, metadata in newest_first:
        if base.is_complete and instant.completion <= base.up_to:
            break
        partitions = wiped_partitions(instant, metadata)
        if partitions is None:
            wiped_all = max(wiped_all, instant.requested)
        for partition in partitions or ():
            wiped[partition] = max(wiped.get(partition, ""), instant.requested)
        told = decode_tombstones(instant, metadata)
        if told is not None:
            files |= {file.name: file for file in added_files(told, instant)}
            base = told if not base.is_complete or told.up_to > base.up_to else base
    if base is not known:
        files = {file.name: file for file in base.files} | files
        wiped_all = max(wiped_all, base.wiped_all)
        for partition, at in base.wiped.items():
            wiped[partition] = max(wiped.get(partition, ""), at)
    return Tombstones(
        up_to=base.up_to,
        files=tuple(files[name] for name in sorted(files)),
        wiped=wiped,
        wiped_all=wiped_all,
        is_complete=base.is_complete,
    )


def wiped_partitions(instant: Instant, metadata: CommitMetadata) -> frozenset[str] | None:
    """Return the partitions whose rows a write replaced, None for all; their deletes are forgotten with the rows."""
    if instant.action is not Action.REPLACECOMMIT or metadata.operation in REWRITES:
        return frozenset()
    if metadata.operation == Operation.INSERT_OVERWRITE_TABLE:
        return None
    return frozenset({*metadata.replaced, *(stat.partition for stat in metadata.stats)})


def added_files(told: Tombstones, instant: Instant) -> tuple[TombstoneFile, ...]:
    """Return the files that the commit at `instant` brought, merged ones included: what it added to those before it."""
    return tuple(file for file in told.files if file.instant == instant.requested)


def files_to_merge(files: Sequence[TombstoneFile]) -> list[tuple[TombstoneFile, ...]]:
    """Return groups of files of about the same number of rows, each to become one."""
    tiers: dict[int, list[TombstoneFile]] = {}
    for file in (file for file in files if file.rows < _MERGED_ROWS):
        tier = 0
        while file.rows >= _FANOUT ** (tier + 1):
            tier += 1
        tiers.setdefault(tier, []).append(file)
    return [tuple(tiers[tier]) for tier in sorted(tiers) if len(tiers[tier]) >= _FANOUT]


def encode_tombstones(known: Tombstones) -> str:
    """Return the text that a commit carries."""
    files = [[file.name, file.rows, file.first, file.last] for file in known.files]
    return json.dumps({"up_to": known.up_to, "files": files, "wiped": dict(known.wiped), "wiped_all": known.wiped_all})


def decode_tombstones(instant: Instant, metadata: CommitMetadata) -> Tombstones | None:
    """Return what a commit tells, None if it tells nothing; raise CorruptTableError for what cannot be its text."""
    text = metadata.extra.get(TOMBSTONES_KEY)
    if not text:
        return None
    try:
        told = parse_json(text)
        files = tuple(TombstoneFile(name=name, rows=int(n), first=a, last=z) for name, n, a, z in told["files"])
        wiped = {str(partition): str(at) for partition, at in told["wiped"].items()}
        up_to, wiped_all = str(told["up_to"]), str(told["wiped_all"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CorruptTableError(
            f"the commit {instant.requested} carries {TOMBSTONES_KEY} that cannot be read: {error}",
            instant=str(instant),
        ) from error
    for file in files:
        _parts(file.name)
    return Tombstones(up_to=up_to, files=files, wiped=wiped, wiped_all=wiped_all, is_complete=True)


def _parts(name: str) -> tuple[str, str, str]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise CorruptTableError(f"{name!r} is no name of a tombstone file, and a commit names it as one", path=name)
    return match[1], match[2], match[3]
