"""The checkpoint of the files source: the files that commits have read, in a string of at most 100 kB.

A file is identified by its modification time and a digest of its address and size, so a rewritten file is a new file.
The checkpoint contains an entry for each of the newest `LIMIT` files. For all older files it contains only the `floor`,
the newest of their entries:

    older  <---- floor ---- the newest LIMIT files, one entry each ---->  newer
    all were read           read if there is an entry, otherwise not read

A file that arrives late with an old modification time is read, unless it is older than the floor. Such a file is
skipped, because the checkpoint cannot distinguish it from a file that was read. This needs more than `LIMIT` newer
files; a run with `full_refresh` reads the file.
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
#: The maximum number of files in a stored checkpoint.
_MOST_FILES = 10_000_000
_DIGEST_BYTES = 6

#: Modification time in milliseconds, and digest. The digest only has to distinguish files with equal times.
Entry = tuple[int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file of the source: its address, its path below the listed storage, size and modification time (UTC)."""

    url: str
    path: str
    size_bytes: int
    modified_ms: int

    @property
    def entry(self) -> Entry:
        """The entry of this file in a checkpoint."""
        text = f"{self.url}\0{self.size_bytes}".encode(errors="surrogateescape")
        return self.modified_ms, hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The files that commits have read: all files up to `floor`, and the files in `taken` above it."""

    floor: Entry | None = None
    taken: frozenset[Entry] = frozenset()

    def has(self, file: SourceFile) -> bool:
        """Return whether a commit has read this file."""
        entry = file.entry
        return entry in self.taken or (self.floor is not None and entry <= self.floor)

    def after(self, files: Iterable[SourceFile], *, limit: int = LIMIT) -> Checkpoint:
        """Return the checkpoint that also includes these files, with entries for the newest `limit` files."""
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
        # Differences between neighbouring times are small numbers, which compress well.
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
        """Parse a checkpoint.

        Raises UnsupportedError for a newer version, CorruptTableError for a string that `to_json` did not write.
        """
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
            # The output is limited to the stated size, because a few bytes may decompress to gigabytes.
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
