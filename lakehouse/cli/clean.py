"""`lakehouse clean orphans`: list or delete data files that no write names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show_document
from lakehouse.cli.service_job import service_parser
from lakehouse.cli.table import open_table
from lakehouse.spec.contracts.services import OrphanFile, OrphanFiles


def orphans_command(words: Sequence[str]) -> int:
    """Print the orphan files of a table, and delete them with `--delete`."""
    parser = service_parser("clean orphans")
    parser.add_argument("--delete", action="store_true", help="delete them; print them without this flag first")
    parser.add_argument("--dry-run", action="store_true", help="print them and delete nothing; this is the default")
    given = parser.parse_args(words)
    remove = given.delete and not given.dry_run
    orphans = open_table(given.table, option_pairs(given.option)).services.orphans(remove=remove)
    files = tuple(
        OrphanFile(
            file=orphan.path,
            bytes=orphan.size_bytes,
            modified=f"{datetime.fromtimestamp(orphan.modified_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}",
            reason=orphan.reason,
        )
        for orphan in orphans
    )
    size = sum(file.bytes for file in files)
    show_document(OrphanFiles(deleted=remove, files=len(files), bytes=size, orphans=files), given.output)
    return 0
