"""Validation as a service: it periodically checks the invariants of the table. Nothing is repaired.

    listing and timeline      `operations.validate`
    metadata table            compared with the listing, if the table has one
    footers                   in a sample of the newest base files, by an engine
    rows                      of all newest files, with `lakehouse.validation.deep`

A violation that affects readers raises CorruptTableError with the findings, so that the run fails. The run is
recorded before the error is raised; a failed validation is repeated after a day.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.operations.commit.results import NothingToDo, Totals
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.metadata.validate import validate_metadata
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.core.operations.validate.validate import validate
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.service_log import read_last_run, record_run
from lakehouse.errors import CorruptTableError
from lakehouse.model.attempt import Attempt
from lakehouse.model.display import Readable, Shown, count_text
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.model.upkeep import UpkeepDue, ValidationPlan, upkeep_due
from lakehouse.model.validation import Severity
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)
_SERVICE = "validation"
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated(Readable):
    """A validation that found no violation that affects readers. `warnings` contains the other findings."""

    files: int
    rows: int
    footers: int
    warnings: tuple[str, ...] = ()

    @property
    def instant(self) -> Instant | None:
        """None: the timeline does not change."""
        return None

    @property
    def totals(self) -> Totals:
        """The numbers of compared files and rows."""
        return Totals(files=self.files, rows=self.rows)

    def _shown(self) -> Shown:
        facts = {"footers": self.footers, "rows": self.rows, "warnings": self.warnings}
        return Shown(f"validated: {count_text(self.files, 'file')}", facts)


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> UpkeepDue:
    """Return whether the last validation is long enough ago. A table without writes has nothing to validate."""
    del request
    if not len(table.timeline):
        return UpkeepDue(due=False, reason="the table has no writes")
    last, now_ms = read_last_run(table.env, _SERVICE), table.env.clock.now_ms()
    if last is None:
        return upkeep_due(None, now_ms, policies.validation.every_hours)
    return upkeep_due(last.at_ms, now_ms, policies.validation.every_hours, failed=last.failed)


def plan(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> ValidationPlan | NothingToDo:
    """Return the amount of data that a validation would read, even if it is not due."""
    del request
    slices = load_slices(table)
    if not len(slices):
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason="the table has no files")
    return ValidationPlan(
        file_groups=len(slices),
        footers=min(policies.validation.footers, int(slices.has_base.sum())),
        metadata_table=policies.transaction.metadata.enable,
        deep=policies.validation.deep,
    )


def schedule(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Instant | NothingToDo:
    """Return NothingToDo: a validation has no plan on the timeline."""
    del table, policies, request
    reason = "validation stores no plan on the timeline; `run` plans and executes in one step"
    return NothingToDo(code=NothingToDoReason.SINGLE_STEP, reason=reason)


def run(
    table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Validated | NothingToDo:
    """Validate the table if it is due or forced.

    Raises CorruptTableError with the findings if rows are lost, wrong or unreadable, or if the metadata table differs
    from the files.
    """
    answer = due(table, policies)
    if not (answer.due or request.force):
        return NothingToDo(code=NothingToDoReason.NOT_DUE, reason=answer.reason)
    report = validate(table, engine, policies, deep=policies.validation.deep)
    problems: dict[Severity, list[str]] = {severity: [] for severity in Severity}
    for finding in report.findings:
        place = finding.path or finding.instant
        problems[finding.severity].append(f"{finding.invariant}: {place}: {finding.problem}; {finding.way_out}")
    sample = _sampled(table, policies.validation.footers)
    unreadable = engine.run(partial(_unreadable, table.env.storage), sample, light=True) if sample else []
    # A concurrent clean may have deleted a file since the listing.
    current = {file.path for file in _sampled(table.reload(), None)} if any(unreadable) else set()
    wrong = [text for file, text in zip(sample, unreadable, strict=True) if text and file.path in current]
    wrong += problems[Severity.CORRUPT]
    for severity, text in _metadata_problems(table, engine, policies):
        (wrong if severity is Severity.CORRUPT else problems[severity]).append(text)
    for warning in problems[Severity.WARNING]:
        logger.warning("%s: %s", table.env.storage.root, warning)
    record_run(table.env, _SERVICE, failed=bool(wrong))
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise CorruptTableError(
            f"{table.env.storage.root}: the validation found {len(wrong)} violations, and repaired none: "
            f"{'; '.join(wrong[:_SHOWN])}{more}. `lakehouse table validate` and `lakehouse metadata validate` list all",
            violations=len(wrong),
        )
    return Validated(
        files=report.files, rows=report.rows, footers=len(sample), warnings=tuple(problems[Severity.WARNING])
    )


def cost(table: LoadedTable, policies: Policies) -> ServiceCost:
    """Return a nominal cost. A validation does not speed up reads, so other services have priority."""
    del table, policies
    return ServiceCost(files=1)


def _metadata_problems(table: LoadedTable, engine: Engine, policies: Policies) -> list[tuple[Severity, str]]:
    try:
        report = validate_metadata(table, policies, engine)
    except (CorruptTableError, NotFoundError, pa.ArrowException, OSError) as error:
        problem = f"metadata table: it was not compared, because a file cannot be read: {error}"
        return [(Severity.CORRUPT, problem)]
    if report.ok:
        return []
    if report.is_absent:
        text = f"metadata table: {report.reason}; readers list the files of the table, and the next write unlists it"
        return [(Severity.WARNING, text)]
    problem = report.reason or f"{', '.join(check.partition for check in report.checks if not check.ok)} differ"
    return [(Severity.CORRUPT, f"metadata table: {problem}; rebuild it with `lakehouse metadata rebuild`")]


def _sampled(table: LoadedTable, most: int | None) -> list[BaseFile]:
    """Return a sample of the newest base files, spread evenly over the table. None for `most` means all."""
    slices = load_slices(table)
    places = np.flatnonzero(slices.has_base)
    if most is not None and len(places) > most:
        places = places[np.linspace(0, len(places) - 1, most).astype(int)] if most else places[:0]
    return [piece.base for piece in slices.take(places) if piece.base is not None]


def _unreadable(storage: Storage, _attempt: Attempt, file: BaseFile) -> str:
    """Return why the footer of a file cannot be read; empty if it can."""
    try:
        reader = BaseFileReader(storage, file.path)
    except (CorruptTableError, NotFoundError, pa.ArrowException, OSError) as error:
        return f"footer: {file.path}: {error}"
    try:
        return "" if reader.rows >= 0 else f"footer: {file.path}: it has no number of rows"
    except (CorruptTableError, pa.ArrowException, OSError) as error:
        return f"footer: {file.path}: {error}"
    finally:
        reader.close()
