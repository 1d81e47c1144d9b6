"""A metadata table that must not be used, and why (MDT-7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import CorruptTableError, UnsupportedError


class MetadataUnusableError(CorruptTableError):
    """The metadata table is damaged or contradicts itself; list the files of the data table instead."""


@dataclass(frozen=True, slots=True)
class Unusable:
    """Why a table has no usable metadata table.

    `is_fault`: the metadata table is damaged or behind; otherwise there is none. `is_absent`: the properties list a
    metadata table that has no files.
    """

    reason: str
    is_fault: bool
    is_absent: bool = False


@contextmanager
def reading() -> Iterator[None]:
    """Turn errors of damaged, unsupported and missing files into MetadataUnusableError, with the name of the file."""
    try:
        yield
    except MetadataUnusableError:
        raise
    except (CorruptTableError, UnsupportedError) as error:
        raise MetadataUnusableError(f"the metadata table is damaged: {error.message}", **error.facts) from error
    except NotFoundError as error:
        raise MetadataUnusableError(f"a file of the metadata table is missing: {error.message}") from error
