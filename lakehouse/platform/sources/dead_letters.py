"""Write dead letters: copies of a run's records that could not be parsed or have no key."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.spark.bad_records import first_bad_record, write_dead_letters
from lakehouse.spark.sources import Frame

log = logging.getLogger(__name__)

#: The folder for dead letters without a commit, because there were more than the spec allows.
REFUSED = "refused"
_RECORD_IN_MESSAGE = 300
#: A line from a JSON object that spans several lines.
_PRETTY = re.compile(r'\s*(\{|\[|\},?|\],?|"[^"]*"\s*:.*)\s*$')


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterBox:
    """The folder for the bad records of one plan. It lies outside of every table.

        <folder>/<attempt>/part-*.json    bad records of one attempt; the attempt's commit refers to this folder
        <folder>/refused/part-*.json      bad records of the last attempt that found more than the spec allows

    Each attempt writes to a separate folder. The dead letters of a commit are therefore complete and without
    duplicates, and no other attempt changes them.
    """

    storage: Storage
    folder: str
    attempt: str

    @property
    def url(self) -> str:
        """The address of this attempt's folder."""
        return self.url_of(self.attempt)

    def url_of(self, attempt: str) -> str:
        """Return the address of an attempt's folder."""
        return f"{self.storage.root.rstrip('/')}/{self.folder}/{attempt}"

    def path_of(self, attempt: str) -> str:
        """Return the path of an attempt's folder below the storage."""
        return f"{self.folder}/{attempt}"

    def others(self) -> tuple[str, ...]:
        """Return the other attempts at the same plan that wrote dead letters."""
        return tuple(name for name in self.storage.list_dir(self.folder)[1] if name != self.attempt)

    def empty(self, attempt: str) -> None:
        """Delete the dead letters of an attempt."""
        self.storage.delete_many([file.path for file in self.storage.list(self.path_of(attempt))])


def set_aside(marked: Frame, bad_records: int, table: str, box: DeadLetterBox, *, allowed: int) -> None:
    """Write the bad records of a frame to the dead letters.

    Args:
        marked: Records with the columns of `lakehouse.spark.bad_records.mark_bad_records`.
        bad_records: The number of bad records in `marked`.
        table: The name of the table, for messages.
        box: The folder to write to.
        allowed: The number of bad records that the spec allows.

    Raises:
        UserError: There are more bad records than `allowed`; they are all in the folder `refused`.
    """
    if not bad_records:
        return
    if bad_records <= allowed:
        write_dead_letters(marked, box.storage, box.path_of(box.attempt))
        log.warning("table %s: %s bad records were set aside in %s", table, bad_records, box.url)
        return
    box.empty(REFUSED)
    write_dead_letters(marked, box.storage, box.path_of(REFUSED))
    reason, source_file, record = first_bad_record(marked)
    raise UserError(
        f"table {table}: {bad_records} bad record{'s' if bad_records > 1 else ''}, max_bad_records is {allowed}; "
        f"nothing was written to the table. One of them: {reason}, in {source_file}: "
        f"{record[:_RECORD_IN_MESSAGE]!r}.{_hint(record)} All are in {box.url_of(REFUSED)}",
        bad_records=bad_records,
        dead_letters=box.url_of(REFUSED),
    )


def _hint(record: str) -> str:
    """Return advice for a record that is one line from a JSON object over several lines."""
    return (
        " If a JSON record spans lines, set options: {multiLine: 'true'} in 'ingest'." if _PRETTY.match(record) else ""
    )
