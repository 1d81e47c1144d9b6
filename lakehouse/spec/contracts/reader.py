"""Messages between the API server of the pages and its reader processes: one line of JSON each."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.spec.contracts.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderRequest(Document):
    """A command to run: its words after `lakehouse`."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderAnswer(Document):
    """The result of a command: its exit code, and the content of standard output and standard error."""

    exit_code: int
    output: str = ""
    errors: str = ""
