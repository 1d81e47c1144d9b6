"""What was already ingested, in a few kilobytes that travel inside the commit.

A file is known by its modification time and a digest of its address and size, so a file that was written again is a
new file. The checkpoint remembers the newest `LIMIT` files one by one, and of all older ones only where they end:

    older  <---- floor ---- the newest LIMIT files, each by name ---->  newer
    taken, all of them      taken if remembered, else still to ingest

A file that appears late with an old time is therefore ingested, unless it is older than the floor: then it is taken
for one that was forgotten, and lost. That needs more than `LIMIT` files of newer times to have come first; a run with
`full_refresh` finds such a file.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.document import parse_json

LIMIT = 10_000
VERSION = 1
#: More files than any checkpoint remembers.
_MOST_FILES = 10_000_000
_DIGEST_BYTES = 6

#: Modification time in milliseconds, digest. The time is compared too, so the digest only tells apart equal times.
Entry = tuple[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file to ingest: its full address, its path below the listed storage, size, and UTC modification time."""

    url: str
    path: str
    size_bytes: int
    modified_ms: int

    @property
    def entry(self) -> Entry:
        """How the checkpoint remembers this file."""
        text = f"{self.url}\0{self.size_bytes}".encode(errors="surrogateescape")
        return self.modified_ms, hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The files that commits hold: everything up to `floor`, and those `taken` above it."""

    floor: Entry | None = None
    taken: frozenset[Entry] = frozenset()

    def has(self, file: SourceFile) -> bool:
        """Tell whether a commit holds this file already."""
        entry = file.entry
        return entry in self.taken or (self.floor is not None and entry <= self.floor)

    def after(self, files: Iterable[SourceFile], *, limit: int = LIMIT) -> Checkpoint:
        """Return the checkpoint that holds these files too, remembering the newest `limit` by name."""
        floor = self.floor
        entries = sorted(
            entry
            for entry in self.taken.union(file.entry for file in files)
            if self.floor is None or entry > self.floor
        )
        if len(entries) > limit:
            floor = entries[-limit - 1]
            entries = entries[-limit:]
        return Checkpoint(floor=floor, taken=frozenset(entries))

    def to_json(self) -> str:
        """Return the checkpoint as one line of JSON."""
        entries = sorted(self.taken)
        times = np.array([ms for ms, _ in entries], dtype="<i8")
        # Neighbouring times differ little, so their differences shrink to almost nothing.
        packed = zlib.compress(np.diff(times, prepend=0).tobytes() + b"".join(digest for _, digest in entries), 9)
        return json.dumps(
            {
                "version": VERSION,
                "floor": None if self.floor is None else [self.floor[0], self.floor[1].hex()],
                "files": len(entries),
                "taken": base64.b64encode(packed).decode("ascii"),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Checkpoint:
        """Parse what `to_json` wrote; raise UnsupportedError for a newer form, CorruptTableError for anything else."""
        try:
            value = parse_json(text)
            version = value["version"]
            if version != VERSION:
                raise UnsupportedError(
                    f"the ingest checkpoint has version {version!r}, this package reads {VERSION}: update the package",
                    version=version,
                )
            count = value["files"]
            if not isinstance(count, int) or not 0 <= count <= _MOST_FILES:
                raise ValueError(f"{count!r} files")
            expected = count * (8 + _DIGEST_BYTES)
            # No more than it says is unpacked: some bytes may hold gigabytes.
            unpacker = zlib.decompressobj()
            packed = unpacker.decompress(base64.b64decode(value["taken"], validate=True), expected + 1)
            if len(packed) != count * (8 + _DIGEST_BYTES):
                raise ValueError(f"{len(packed)} bytes for {count} files")
            times = np.cumsum(np.frombuffer(packed, dtype="<i8", count=count)).tolist()
            digests = packed[count * 8 :]
            floor = value["floor"]
            return cls(
                floor=None if floor is None else (int(floor[0]), bytes.fromhex(floor[1])),
                taken=frozenset(
                    (ms, digests[i * _DIGEST_BYTES : (i + 1) * _DIGEST_BYTES]) for i, ms in enumerate(times)
                ),
            )
        except (ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
            raise CorruptTableError(
                f"the ingest checkpoint in the last commit is unreadable ({error}): {text[:120]!r}"
            ) from error
