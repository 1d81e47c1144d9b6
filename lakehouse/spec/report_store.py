"""Store of a job's documents, which its driver and Airflow share.

    report.json       the JobReport: the driver writes it, Airflow reads it
    heartbeat         changes while a task waits for the job: Airflow writes it, the driver reads it
    stop              a request to end the job: Airflow writes it, the driver reads it
    submission.json   the application on its cluster: a task writes it, its next try reads it
    spec.yaml         the table spec: a task writes it, a driver that cannot read the task's files reads it

A store belongs to one job. Its address is the report's address; the other documents have sibling addresses.

    /folder/dag/run/task/report.json             a folder of one host, or one that all hosts mount: `FolderStore`
    s3://bucket/reports/dag/run/task/report.json an object store or HDFS: `lakehouse.platform.jobs.report_stores`
    catalog:dag/run/task/report.json             rows of the catalog: `lakehouse.platform.jobs.report_stores`

Airflow's environment has no storage clients. There, stores other than folders are used through processes in Spark's
environment (`lakehouse.platform.jobs.store_command`).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from lakehouse.errors import LakehouseError, RetryableError
from lakehouse.spec.contracts.job import JobReport, without_lineage
from lakehouse.spec.private_files import make_parents, read_own_file

#: Documents with their content.
Documents = dict["JobDocument", str]
#: Bytes reserved for a report; a report without lineage takes some thousands.
_RESERVED = 262_144


class JobDocument(StrEnum):
    """The documents of a job, by their names in the store."""

    REPORT = "report.json"
    HEARTBEAT = "heartbeat"
    STOP = "stop"
    SUBMISSION = "submission.json"
    SPEC = "spec.yaml"


def sibling(address: str, document: JobDocument) -> str:
    """Return the address of a document in the store that has another document at `address`."""
    return f"{address.rpartition('/')[0]}/{document.value}"


class Reservation(Protocol):
    """The place of a report, reserved before the job begins."""

    def write(self, report: JobReport) -> None:
        """Write the report atomically, so that readers never get a partial report; raise OSError on failure."""
        ...

    def discard(self) -> None:
        """Free the place unless it contains the report."""
        ...


class JobDocuments(Protocol):
    """The documents of one job. Errors are UserError (no access) and RetryableError (try again)."""

    @property
    def address(self) -> str:
        """The address of the job's report."""
        ...

    def read(self, *documents: JobDocument) -> Documents:
        """Return documents with their content, without those that do not exist."""
        ...

    def change(self, changes: Mapping[JobDocument, str | None]) -> None:
        """Write documents, each atomically and in this order; None deletes a document, which may be missing."""
        ...


class ReportStore(JobDocuments, Protocol):
    """The documents of one job in the process of its driver, which writes the report."""

    def reserve(self) -> Reservation:
        """Check that the report can be written, before the job begins.

        Raises RetryableError if the space is full or the store does not answer.
        """
        ...


class WrittenAtEnd:
    """The place of a report in a store that has no space to reserve."""

    def __init__(self, store: JobDocuments) -> None:
        self._store = store

    def write(self, report: JobReport) -> None:
        """Write the report; raise OSError on failure."""
        try:
            self._store.change({JobDocument.REPORT: report.to_json()})
        except LakehouseError as error:
            raise OSError(str(error)) from error

    def discard(self) -> None:
        """Do nothing, because nothing is reserved."""


class FolderStore:
    """Job documents as files of this user, next to the report, whose path can have any name."""

    def __init__(self, report: Path) -> None:
        self._report = report

    @property
    def address(self) -> str:
        """The path of the report."""
        return str(self._report)

    def reserve(self) -> Reservation:
        """Reserve the space of the report in its folder."""
        return ReportFile(self._report)

    def read(self, *documents: JobDocument) -> Documents:
        """Return the content of files; raise UserError for a file of another user."""
        texts = {}
        for document in documents:
            with suppress(FileNotFoundError, NotADirectoryError):
                texts[document] = read_own_file(self._path(document))
        return texts

    def change(self, changes: Mapping[JobDocument, str | None]) -> None:
        """Write each document to a new file and rename it."""
        for document, text in changes.items():
            path = self._path(document)
            try:
                if text is None:
                    path.unlink(missing_ok=True)
                else:
                    _write(path, text)
            except OSError as error:
                raise RetryableError(f"{path} cannot be changed: {error}", path=str(path)) from error

    def _path(self, document: JobDocument) -> Path:
        return self._report if document is JobDocument.REPORT else self._report.with_name(document.value)


class ReportFile:
    """The file of a report, whose space is reserved before the job: a full disk is found before the commit.

    Raises RetryableError if the space cannot be reserved.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._temporary = path, ""
        try:
            make_parents(path.parent)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._remove_leftovers()
            # A new file of mode 0600 with a name that no other process can predict.
            descriptor, self._temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
            try:
                os.posix_fallocate(descriptor, 0, _RESERVED)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.discard()
            raise RetryableError(
                f"no space can be reserved for the report {path}: {error}. The job has not begun. Free space there, or "
                "set LAKEHOUSE_REPORTS to another folder"
            ) from error

    def write(self, report: JobReport) -> None:
        """Write the report atomically, so that readers never get a partial report; raise OSError on failure.

        If the disk is full and the report exceeds the reserved space, it is written without its lineage.
        """
        try:
            self._fill(report)
        except OSError:
            self._fill(without_lineage(report))
        os.replace(self._temporary, self._path)

    def discard(self) -> None:
        """Delete the reserved file unless it contains the report."""
        with suppress(OSError):
            if self._temporary:
                os.unlink(self._temporary)

    def _fill(self, report: JobReport) -> None:
        with open(self._temporary, "r+b") as file:
            file.write(report.to_json().encode())
            file.truncate()

    def _remove_leftovers(self) -> None:
        """Delete the reserved files of earlier tries, which were killed."""
        for file in self._path.parent.glob(f".{self._path.name}.*.tmp"):
            file.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    make_parents(path.parent)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode())
        os.replace(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
