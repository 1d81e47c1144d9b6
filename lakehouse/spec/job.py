"""The contract between who starts a job and the job: its arguments, and the report that it leaves.

Both directions of both live in this file, so the Airflow operator and the command line cannot drift apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from lakehouse.errors import LakehouseError, SourceMissingError, TableBusyError, UserError, nearest
from lakehouse.model.document import parse_json
from lakehouse.model.drift import ColumnDrift
from lakehouse.model.texts import text_list
from lakehouse.spec.secrets import redact_text, refuse_secrets

_VALUED = {
    "--interval-start": "interval_start",
    "--interval-end": "interval_end",
    "--run-id": "run_id",
    "--report": "report",
    "--instant": "instant",
}
_OPTION = "--option"
#: May be given several times.
_REPEATED = {"--table": "tables", "--partition": "partitions"}
_FLAGS = {"--full-refresh": "full_refresh", "--force": "force"}
_KNOWN = (*_REPEATED, *_VALUED, _OPTION, *_FLAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """One run of one job.

    `table` is the path of a table spec, a table's location, or its name in a catalog; `also` are further tables of a
    catalog that the same process serves. `partitions` narrow a table service to some of them. The interval is half
    open, in ISO 8601; both bounds or none. `run_id` is the same for every try of a run. `report` names the file for the
    JobReport. `full_refresh` makes the run ignore what earlier commits say was ingested. `instant` names a plan of a
    table service to be run, `force` makes one where none is due. `options` are options of this run only.
    """

    verb: str
    action: str
    table: str
    interval_start: str | None = None
    interval_end: str | None = None
    run_id: str | None = None
    report: str | None = None
    full_refresh: bool = False
    instant: str | None = None
    force: bool = False
    also: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables."""
        return (self.table, *self.also)

    def __post_init__(self) -> None:
        for name in ("also", "partitions"):
            object.__setattr__(self, name, text_list(getattr(self, name), name, allow_empty=True))
        if (self.interval_start is None) != (self.interval_end is None):
            raise UserError("a data interval needs both --interval-start and --interval-end")
        interval = self.interval
        if interval is not None and interval[0] >= interval[1]:
            raise UserError(f"--interval-start {self.interval_start} is not before --interval-end {self.interval_end}")
        if self.also and self.verb == "ingest":
            raise UserError(f"ingest works on one table; --table was given {len(self.tables)} times", flag="--table")
        for key in self.options:
            if not key or "=" in key:
                raise UserError(f"--option: {key!r} is not the name of an option", option=key)
        refuse_secrets(self.options, "--option")

    @property
    def interval(self) -> tuple[datetime, datetime] | None:
        """The data interval with time zones; a bound without one is UTC."""
        if self.interval_start is None or self.interval_end is None:
            return None
        return _moment("--interval-start", self.interval_start), _moment("--interval-end", self.interval_end)

    @property
    def interval_name(self) -> str:
        """The data interval as reports and commits carry it, empty for none."""
        return "" if self.interval is None else interval_text(self.interval)

    def to_argv(self) -> tuple[str, ...]:
        """Return the words that `from_argv` reads back into an equal command."""
        words = [self.verb, self.action]
        for flag, name in _REPEATED.items():
            words += [word for value in getattr(self, name) for word in (flag, value)]
        for flag, name in _VALUED.items():
            value = getattr(self, name)
            if value is not None:
                words += [flag, value]
        words += [flag for flag, name in _FLAGS.items() if getattr(self, name)]
        for key, value in sorted(self.options.items()):
            words += [_OPTION, f"{key}={value}"]
        return tuple(words)

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> JobCommand:
        """Parse `verb action --flag value ...`; raise UserError for what is unknown, missing or said twice."""
        verb, action, *rest = (*argv, "", "")[: max(2, len(argv))]
        if not verb or not action or verb.startswith("--") or action.startswith("--"):
            raise UserError(f"expected a verb and an action, as in 'ingest run', not {' '.join(argv[:2])!r}")
        given: dict[str, Any] = {}
        options: dict[str, str] = {}
        lists: dict[str, list[str]] = {name: [] for name in _REPEATED.values()}
        for flag, value in _flags(rest):
            if flag == _OPTION:
                key, equals, text = value.partition("=")
                if not equals or not key or key in options:
                    raise UserError(f"--option {key}: expected key=value, each key once", option=key)
                options[key] = text
                continue
            if flag in _REPEATED:
                lists[_REPEATED[flag]].append(value)
                continue
            name = _FLAGS.get(flag) or _VALUED[flag]
            if name in given:
                raise UserError(f"{flag} was given twice", flag=flag)
            given[name] = True if flag in _FLAGS else value
        if not lists["tables"]:
            raise UserError(f"{verb} {action} needs --table: a table spec, a table's location, or namespace.table")
        table, *also = lists["tables"]
        partitions = tuple(lists["partitions"])
        return cls(
            verb=verb, action=action, table=table, also=tuple(also), partitions=partitions, options=options, **given
        )


_SUMMED = (
    "rows",
    "inserts",
    "updates",
    "deletes",
    "files",
    "bytes",
    "bad_records",
    "late_rows_dropped",
    "conflicts",
    "seconds",
)
_LISTS = ("partitions", "folders", "missing")


class JobStatus(StrEnum):
    """How a job ended."""

    COMMITTED = "committed"
    NOTHING_TO_DO = "nothing_to_do"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """Why a job failed: the class of the error, its message, and whether the same run may succeed later.

    `wait_for_s` is how long, in all, it is worth waiting for what is missing; None where the job waits for nothing.
    """

    kind: str
    message: str
    retryable: bool
    wait_for_s: float | None = None

    @classmethod
    def of(cls, error: BaseException) -> JobError:
        """Return an exception as a value; one that is not of this package may be a passing fault."""
        retryable = error.retryable if isinstance(error, LakehouseError) else True
        wait_for_s = error.wait_for_s if isinstance(error, SourceMissingError) else None
        message = redact_text(str(error)) or type(error).__name__
        return cls(kind=type(error).__name__, message=message, retryable=retryable, wait_for_s=wait_for_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What a job did: rows written by the commit, files and their bytes, bad records set aside, seconds it took.

    `late_rows_dropped` are rows older than a remembered delete of their key. `conflicts` is how often it lost to
    another writer and tried again. `reason` says why there was nothing to do. `partitions` are the names of those that
    were published or archived. `parts` are the reports of the tables of a batch; numbers are their sums. `warning` is
    what went wrong beside the work, which is done. `interval` is the data interval that the run took, empty for none;
    `folders` are the folders and files of the source that an ingestion read, `missing` those that had nothing to read
    and were skipped. `drift` are the columns in which its rows differed from the table.
    """

    status: JobStatus
    table: str = ""
    instant: str | None = None
    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    files: int = 0
    bytes: int = 0
    bad_records: int = 0
    late_rows_dropped: int = 0
    conflicts: int = 0
    seconds: float = 0.0
    reason: str = ""
    error: JobError | None = None
    partitions: tuple[str, ...] = ()
    parts: tuple[JobReport, ...] = ()
    warning: str = ""
    interval: str = ""
    folders: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    drift: tuple[ColumnDrift, ...] = ()

    def __post_init__(self) -> None:
        if (self.status is JobStatus.FAILED) != (self.error is not None):
            raise UserError(
                f"a report of status {self.status} with error {self.error!r}: only a failed one has an error"
            )

    def to_mapping(self) -> dict[str, Any]:
        """Return the report as JSON would hold it."""
        parts = [part.to_mapping() for part in self.parts]
        lists = {name: list(getattr(self, name)) for name in _LISTS}
        return {
            **asdict(self),
            **lists,
            "status": str(self.status),
            "parts": parts,
            "drift": [one.to_mapping() for one in self.drift],
        }

    def to_json(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(self.to_mapping(), ensure_ascii=False)

    @classmethod
    def _of(cls, mapping: dict[str, Any]) -> JobReport:
        error, parts = mapping.pop("error", None), mapping.pop("parts", None) or ()
        return cls(
            status=JobStatus(mapping.pop("status")),
            error=None if error is None else JobError(**error),
            partitions=tuple(mapping.pop("partitions", ())),
            folders=tuple(mapping.pop("folders", ())),
            missing=tuple(mapping.pop("missing", ())),
            drift=tuple(ColumnDrift.of(one) for one in mapping.pop("drift", ())),
            parts=tuple(cls._of(part) for part in parts),
            **mapping,
        )

    @classmethod
    def from_json(cls, text: str) -> JobReport:
        """Parse what `to_json` wrote; raise UserError if it is something else."""
        try:
            return cls._of(parse_json(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            known = ", ".join(declared.name for declared in fields(cls))
            raise UserError(f"not a job report: {error}; expected JSON with {known}: {text[:200]!r}") from error


def interval_text(interval: tuple[datetime, datetime]) -> str:
    """Return the interval as commits carry it: `2026-01-01T00:00:00Z/2026-01-02T00:00:00Z`."""
    return "/".join(bound.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z" for bound in interval)


def combined(reports: Sequence[JobReport]) -> JobReport:
    """Return the report of a batch: failed if one table failed, and worth a retry if one of those failures is.

    Its error is that of the first table worth a retry; that a table was busy is told of a batch with no other failure.
    """
    failed = [report for report in reports if report.error is not None]
    committed = any(report.status is JobStatus.COMMITTED for report in reports)
    status = JobStatus.FAILED if failed else JobStatus.COMMITTED if committed else JobStatus.NOTHING_TO_DO
    error = None
    if failed:
        errors = [report.error for report in failed if report.error is not None]
        first = min(errors, key=lambda error: (not error.retryable, error.kind == TableBusyError.__name__))
        told = "; ".join(f"{r.table}: {r.error.kind}: {r.error.message}" for r in failed if r.error)
        error = JobError(
            kind=first.kind, message=f"{len(failed)} of {len(reports)} tables: {told}", retryable=first.retryable
        )
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in _SUMMED}
    return JobReport(
        status=status,
        table=", ".join(report.table for report in reports),
        error=error,
        parts=tuple(reports),
        warning="; ".join(report.warning for report in reports if report.warning),
        **sums,
    )


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (flag, value) from `--flag value` and `--flag=value`."""
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag not in _KNOWN:
            raise UserError(f"unknown argument {word!r}.{nearest(flag, _KNOWN)} Known: {', '.join(_KNOWN)}.", flag=flag)
        if flag in _FLAGS:
            if equals:
                raise UserError(f"{flag} takes no value", flag=flag)
        elif not equals:
            following = next(rest, None)
            if following is None:
                raise UserError(f"{flag} needs a value", flag=flag)
            value = following
        yield flag, value


def _moment(flag: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{flag} {text!r} is not a time in ISO 8601, such as 2026-01-31T00:00:00+00:00") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
