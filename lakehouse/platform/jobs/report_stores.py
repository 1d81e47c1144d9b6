"""Stores of job documents outside of a folder: an object store or HDFS, and the catalog.

Access to objects is limited by the rights of the bucket or directory, and access to rows by the users of the catalog's
database. Rows that have not changed for KEPT_MS are deleted when another job starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from sqlalchemy import delete, select

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.system.clock import Clock, SystemClock
from lakehouse.errors import UserError
from lakehouse.platform.catalog.connect import DEFAULT, Database, catalog_url
from lakehouse.platform.catalog.models import JobDocumentRow
from lakehouse.spec.contracts.job import STORAGE_SETTINGS
from lakehouse.spec.report_store import Documents, FolderStore, JobDocument, ReportStore, Reservation, WrittenAtEnd
from lakehouse.spec.reports_folder import CATALOG, is_folder

#: Age after which documents in the catalog are deleted.
KEPT_MS = 30 * 24 * 3600 * 1000
_LONGEST_JOB = 700
_PROBE = ".probe"


def open_report_store(address: str, environ: Mapping[str, str]) -> ReportStore:
    """Return the store of a job. `address` is a path, a URL or `catalog:<path>` of one of its documents.

    Object stores take their settings from the environment, and from `spark.hadoop.fs.*` in LAKEHOUSE_STORAGE_SETTINGS.
    """
    if is_folder(address):
        return FolderStore(Path(address))
    scheme, _, path = address.partition(":")
    folder = path.rpartition("/")[0]
    if scheme == CATALOG:
        return RowStore(address, folder, Database(catalog_url(DEFAULT, environ)), SystemClock())
    return ObjectStore(address, open_storage(f"{scheme}:{folder}", _settings(environ)))


class ObjectStore:
    """Documents in the directory of a job. `address` is the address of the report in the storage."""

    def __init__(self, address: str, storage: Storage) -> None:
        self.address, self._storage = address, storage

    def reserve(self) -> Reservation:
        """Write an object next to the report and delete it, so that a missing right is detected before the job."""
        self._storage.put(_PROBE, b"")
        self._storage.delete(_PROBE)
        return WrittenAtEnd(self)

    def read(self, *documents: JobDocument) -> Documents:
        """Return the content of objects."""
        texts = {}
        for document in documents:
            try:
                texts[document] = self._storage.get(document.value).decode()
            except NotFoundError:
                continue
        return texts

    def change(self, changes: Mapping[JobDocument, str | None]) -> None:
        """Replace or delete objects."""
        for document, text in changes.items():
            if text is None:
                self._storage.delete(document.value)
            else:
                self._storage.put(document.value, text.encode())


class RowStore:
    """Documents in the database of a catalog. `job` is the address of the report without its scheme and last part."""

    def __init__(self, address: str, job: str, database: Database, clock: Clock) -> None:
        if not job or len(job) > _LONGEST_JOB:
            raise UserError(f"{address}: the path of a job in the catalog has 1 to {_LONGEST_JOB} characters")
        self.address, self._job = address, job
        self._database, self._clock = database, clock

    def reserve(self) -> Reservation:
        """Delete old documents, which also detects a missing right before the job."""
        with self._database.session() as session:
            session.execute(delete(JobDocumentRow).where(JobDocumentRow.changed_ms < self._clock.now_ms() - KEPT_MS))
        return WrittenAtEnd(self)

    def read(self, *documents: JobDocument) -> Documents:
        """Return the content of rows."""
        names = [document.value for document in documents]
        query = select(JobDocumentRow).where(JobDocumentRow.job == self._job, JobDocumentRow.name.in_(names))
        with self._database.reading() as session:
            return {JobDocument(row.name): row.content for row in session.scalars(query)}

    def change(self, changes: Mapping[JobDocument, str | None]) -> None:
        """Replace or delete rows in one transaction."""
        now_ms = self._clock.now_ms()
        with self._database.session() as session:
            for document, text in changes.items():
                if text is None:
                    session.execute(
                        delete(JobDocumentRow).where(
                            JobDocumentRow.job == self._job, JobDocumentRow.name == document.value
                        )
                    )
                else:
                    session.merge(JobDocumentRow(job=self._job, name=document.value, content=text, changed_ms=now_ms))


def _settings(environ: Mapping[str, str]) -> dict[str, str]:
    try:
        settings = json.loads(environ.get(STORAGE_SETTINGS) or "{}")
    except ValueError as error:
        raise UserError(f"{STORAGE_SETTINGS} is not JSON: {error}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{STORAGE_SETTINGS} is not a JSON object of settings")
    return {str(key): str(value) for key, value in settings.items()}
