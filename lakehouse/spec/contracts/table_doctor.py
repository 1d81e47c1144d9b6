"""The report of `lakehouse doctor table`: settings that make concurrent writers of a table unsafe."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lakehouse.spec.contracts.document import Document


class Risk(StrEnum):
    """The consequence of a finding."""

    #: Rows or versions can be lost, without an error.
    UNSAFE = "unsafe"
    #: A writer can fail or wait, or the check has no proof.
    WARNING = "warning"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFinding:
    """A setting, or a state of the timeline, that makes concurrent writers unsafe.

    Attributes:
        check: Name of the check, such as `lock`.
        risk: The consequence.
        writers: The writers with the setting: `lakehouse`, or a properties file. Empty for the table itself.
        problem: The setting, with its value.
        consequence: Why rows or versions can be lost.
        advice: The settings or commands that correct it.
    """

    check: str
    risk: Risk
    writers: tuple[str, ...] = ()
    problem: str
    consequence: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDoctorReport(Document):
    """Result of `lakehouse doctor table`.

    Attributes:
        table: The name of the table in the catalog, or in its properties.
        location: Path or URL of the table.
        table_version: Version of the Hudi format.
        writers: The writers whose settings were compared.
        checks: Names of the checks that ran.
        findings: The problems; empty if none is left.
    """

    table: str
    location: str
    table_version: int
    writers: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    findings: tuple[TableFinding, ...] = ()

    @property
    def unsafe(self) -> tuple[TableFinding, ...]:
        """The findings by which rows or versions can be lost."""
        return tuple(finding for finding in self.findings if finding.risk is Risk.UNSAFE)
