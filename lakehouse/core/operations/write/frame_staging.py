"""Staged rows of a DataFrame writer whose tasks cannot write to the file groups of their rows.

    .hoodie/.staging/frames/<id of the write>/<new id>.arrow     one Arrow file per task attempt that had rows

A task attempt returns its files as its result, and only the files in the results of the finished attempts are read. So
the rows of a retried or speculative attempt count once. The write deletes its folder. If its process is killed, the
next such write deletes the folder when no file in it is newer than a day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.rows.list_offsets import with_offsets
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import RetryableError

_FRAMES = ".hoodie/.staging/frames"
_EXPIRY_MS = 24 * 3_600_000
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


@dataclass(frozen=True, slots=True)
class StagedRows:
    """One staged file, with the size of its rows in memory."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FrameStaging:
    """The folder of one write in the storage of its table; picklable."""

    storage: Storage
    id: str

    @property
    def directory(self) -> str:
        """The folder, relative to the table."""
        return f"{_FRAMES}/{self.id}"

    def write(
        self, batches: Iterable[pa.RecordBatch], new_id: Callable[[], str], check: Callable[[int], None]
    ) -> StagedRows | None:
        """Write the rows of one task attempt to a file; return None, without a file, if there are none.

        `check` is called with the bytes of the rows so far, and may raise an error; then no file is left.
        """
        rows = size = 0
        stream = (batch for batch in with_offsets(iter(batches)) if batch.num_rows)
        first = next(stream, None)
        if first is None:
            return None
        path = f"{self.directory}/{new_id()}.arrow"
        with (
            self.storage.open_output(path) as sink,
            pa.ipc.new_file(sink, first.schema, options=_OPTIONS) as writer,
        ):
            batch: pa.RecordBatch | None = first
            while batch is not None:
                rows, size = rows + batch.num_rows, size + batch.nbytes
                check(size)
                writer.write_batch(batch)
                batch = next(stream, None)
        return StagedRows(path, rows, size)

    def reader(self, staged: Sequence[StagedRows], schema: pa.Schema) -> pa.RecordBatchReader:
        """Return the rows of staged files, one batch at a time."""
        return pa.RecordBatchReader.from_batches(schema, self._batches(staged, schema))

    def _batches(self, staged: Sequence[StagedRows], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for part in staged:
            try:
                source = self.storage.open_input(part.path)
            except NotFoundError as error:
                raise RetryableError(
                    f"{self.storage.root}: the staged rows {part.path} are gone; run the write again", path=part.path
                ) from error
            with source:
                reader = pa.ipc.open_file(source)
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number).cast(schema)

    def delete(self, staged: Sequence[StagedRows] = ()) -> None:
        """Delete the staged rows of this write.

        Spark may create several writers for one write, and stage with one and commit with another, so the folders of
        `staged` are deleted, too.
        """
        folders = {self.directory, *(part.path.rpartition("/")[0] for part in staged)}
        paths = [file.path for folder in sorted(folders) for file in self.storage.list(folder)]
        delete_leftovers(self.storage, paths)


def delete_expired_frames(storage: Storage, now_ms: int) -> None:
    """Delete the staged rows of writes whose process ended without cleaning up."""
    newest: dict[str, int] = {}
    files = storage.list(_FRAMES)
    for file in files:
        directory = file.path.rpartition("/")[0]
        newest[directory] = max(newest.get(directory, 0), file.modified_ms)
    expired = [f.path for f in files if newest[f.path.rpartition("/")[0]] + _EXPIRY_MS < now_ms]
    if expired:
        delete_leftovers(storage, expired)
