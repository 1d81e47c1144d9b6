"""A data file that a plan names and storage does not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import CorruptTableError


class MissingFileError(CorruptTableError, NotFoundError):
    """A committed data file does not exist; `path` is relative to the table."""


@contextmanager
def committed_file(root: str, path: str) -> Iterator[None]:
    """Raise MissingFileError in place of NotFoundError while a committed data file is opened.

    The metadata table lists files without asking storage, so a file that was lost is noticed only when it is opened.
    """
    try:
        yield
    except MissingFileError:
        raise
    except NotFoundError as error:
        raise MissingFileError(
            f"{root}/{path} does not exist although the table names it: it was lost, or a clean removed it after the "
            "read was planned. Plan the read again; if the file is lost, restore it from a backup or restore a version "
            "without it: `lakehouse restore run`. To continue without its rows, set lakehouse.damaged.files=skip",
            path=path,
        ) from error
