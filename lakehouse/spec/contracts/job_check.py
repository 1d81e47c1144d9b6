"""Result of a successful check of a job's command (`--check`)."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.spec.contracts.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCheck(Document):
    """The result of a check without errors; a failed check writes the report of a failed job.

    Attributes:
        command: The verb and the action of the command, such as `ingest run`.
        tables: The tables of the command.
        notes: Sentences about effects of the job, such as the creation of the table.
    """

    command: str
    tables: tuple[str, ...]
    notes: tuple[str, ...] = ()
