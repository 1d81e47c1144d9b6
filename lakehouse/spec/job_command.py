"""Arguments of a job: one dataclass for each kind of job, and the command line that carries them to its process.

    lakehouse ingest run       IngestCommand
    lakehouse ingest stream    StreamCommand
    lakehouse ingest replay    ReplayCommand
    lakehouse <service> run    ServiceCommand
    lakehouse publish run      PublishCommand

This module contains both encoder and decoder, so the Airflow operator and the command line always agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, ClassVar

from lakehouse.errors import UserError, nearest
from lakehouse.model.texts import text_list
from lakehouse.spec.contracts.job import interval_text
from lakehouse.spec.job_flags import ALL_FLAGS, FlagForm, JobFlag
from lakehouse.spec.quantities import parse_duration
from lakehouse.spec.secrets import refuse_secrets

#: Nouns of the jobs that are not table services.
INGEST, PUBLISH = "ingest", "publish"
#: Actions of jobs: run once, repeat an ingestion, and parse dead letters again.
RUN, STREAM, REPLAY = "run", "stream", "replay"
_OUTPUTS = ("text", "json")
_FLAGS = {flag.flag: flag for flag in ALL_FLAGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobArguments:
    """The arguments that all jobs share.

    Attributes:
        table: Path of a table spec, location of a table, or its name in a catalog.
        run_id: Id of the run, which all tries of the run share.
        report: Path of the file for the report of the job.
        options: Options for this run only, by option key.
        check: Only check the command and its table.
        output: Form of the printed result: `text` or `json`; None for `text`.
        debug: Print the traceback of an unexpected error.
    """

    VERB: ClassVar[str] = ""
    ACTION: ClassVar[str] = RUN

    table: str
    run_id: str | None = None
    report: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    check: bool = False
    output: str | None = None
    debug: bool = False

    def __post_init__(self) -> None:
        if self.output not in (None, *_OUTPUTS):
            raise UserError(f"--output {self.output}: expected text or json", flag="--output")
        for key in self.options:
            if not key or "=" in key:
                raise UserError(f"--option: {key!r} is not the name of an option", option=key)
        refuse_secrets(self.options, "--option")

    @property
    def verb(self) -> str:
        """Noun of the command line, such as `ingest` or `clean`."""
        return self.VERB

    @property
    def title(self) -> str:
        """Noun and verb of the command line, such as `ingest run`."""
        return f"{self.verb} {self.ACTION}"

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of the run, `table` first."""
        return (self.table,)

    @property
    def interval(self) -> tuple[datetime, datetime] | None:
        """The data interval with time zones; None if the job has none."""
        return None

    @property
    def interval_name(self) -> str:
        """The data interval in the format of reports and commits; empty if the job has none."""
        return "" if self.interval is None else interval_text(self.interval)

    def to_argv(self) -> tuple[str, ...]:
        """Encode the command as command line arguments, which `parse_command` decodes to an equal command."""
        words = [self.verb, self.ACTION]
        for flag in ALL_FLAGS:
            value = getattr(self, flag.field, None)
            if value is None or value is False:
                continue
            if flag.form is FlagForm.SWITCH:
                words.append(flag.flag)
            elif flag.form is FlagForm.PAIRS:
                words += [word for key, text in sorted(value.items()) for word in (flag.flag, f"{key}={text}")]
            elif flag.form is FlagForm.REPEATED:
                words += [word for text in value for word in (flag.flag, text)]
            else:
                words += [flag.flag, value]
        return tuple(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalArguments(JobArguments):
    """The arguments of a job that may have a data interval.

    Attributes:
        interval_start: Start of the data interval in ISO 8601, inclusive; both bounds or none.
        interval_end: End of the data interval, exclusive.
    """

    interval_start: str | None = None
    interval_end: str | None = None

    def __post_init__(self) -> None:
        JobArguments.__post_init__(self)
        if (self.interval_start is None) != (self.interval_end is None):
            raise UserError("a data interval needs both --interval-start and --interval-end")
        interval = self.interval
        if interval is not None and interval[0] >= interval[1]:
            raise UserError(f"--interval-start {self.interval_start} is not before --interval-end {self.interval_end}")

    @property
    def interval(self) -> tuple[datetime, datetime] | None:
        """The data interval with time zones; a bound without a time zone is in UTC."""
        if self.interval_start is None or self.interval_end is None:
            return None
        return _moment("--interval-start", self.interval_start), _moment("--interval-end", self.interval_end)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestCommand(IntervalArguments):
    """`lakehouse ingest run`: ingest once.

    Attributes:
        input: Name of the input if the spec has several inputs, otherwise None.
        full_refresh: Also ingest records that earlier commits already contain.
        resnapshot: Tables of a database whose snapshots are read again.
        end_if_idle: With `check`: end the run, with its report, if the source has no new data.
    """

    VERB: ClassVar[str] = INGEST

    input: str | None = None
    full_refresh: bool = False
    resnapshot: tuple[str, ...] = ()
    end_if_idle: bool = False

    def __post_init__(self) -> None:
        IntervalArguments.__post_init__(self)
        object.__setattr__(self, "resnapshot", text_list(self.resnapshot, "resnapshot", allow_empty=True))
        if self.end_if_idle and not self.check:
            raise UserError(f"--end-if-idle needs `ingest run --check`, not `{self.title}`", flag="--end-if-idle")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCommand(JobArguments):
    """`lakehouse ingest stream`: ingest repeatedly; each commit continues from the checkpoint.

    Attributes:
        input: Name of the input if the spec has several inputs, otherwise None.
        every: Time between the starts of two commits, such as `30s`; None for the time in the spec.
        run_for: Time after which the stream ends; None for the time in the spec.
    """

    VERB: ClassVar[str] = INGEST
    ACTION: ClassVar[str] = STREAM

    input: str | None = None
    every: str | None = None
    run_for: str | None = None

    def __post_init__(self) -> None:
        JobArguments.__post_init__(self)
        for flag, text in (("--every", self.every), ("--run-for", self.run_for)):
            if text is not None and parse_duration(flag, text) == 0:
                raise UserError(f"{flag} {text}: must be longer than 0 seconds", flag=flag)

    def one_run(self, run_id: str) -> IngestCommand:
        """Return the command for one run of the stream."""
        return IngestCommand(
            table=self.table,
            run_id=run_id,
            report=self.report,
            options=self.options,
            output=self.output,
            debug=self.debug,
            input=self.input,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCommand(JobArguments):
    """`lakehouse ingest replay`: parse dead letters again.

    Attributes:
        input: Name of the input if the spec has several inputs, otherwise None.
        commit: Instant of the commit whose dead letters are read again; None for all commits.
        dead_letters: Address of the folder whose dead letters are read again.
        force: Accept that a replayed record may replace a newer row.
    """

    VERB: ClassVar[str] = INGEST
    ACTION: ClassVar[str] = REPLAY

    input: str | None = None
    commit: str | None = None
    dead_letters: str | None = None
    force: bool = False

    def __post_init__(self) -> None:
        JobArguments.__post_init__(self)
        if self.commit is not None and self.dead_letters is not None:
            raise UserError("--commit and --dead-letters both name dead letters; give one", flag="--commit")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCommand(IntervalArguments):
    """`lakehouse <service> run`: run a table service on one table, or on several tables of a catalog.

    Attributes:
        service: Name of the service.
        also: Additional catalog tables for the same process.
        partitions: Limit the service to these partitions; empty means all.
        instant: Instant of the pending plan to execute.
        force: Run even if the service is not due.
    """

    service: str
    also: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    instant: str | None = None
    force: bool = False

    def __post_init__(self) -> None:
        IntervalArguments.__post_init__(self)
        for name in ("also", "partitions"):
            object.__setattr__(self, name, text_list(getattr(self, name), name, allow_empty=True))

    @property
    def verb(self) -> str:
        """Name of the service."""
        return self.service

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of the run, `table` first."""
        return (self.table, *self.also)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishCommand(IntervalArguments):
    """`lakehouse publish run`: publish the partitions that are ready.

    Attributes:
        partitions: Limit the run to these partitions; empty means all.
        force: Also choose partitions that are published already.
        pointers_only: Publish only pointers, which need no Spark, and no copies of files.
        newest: Publish the newest version instead of the version by event time.
        archive_now: Copy the partitions to the archive, regardless of their age.
    """

    VERB: ClassVar[str] = PUBLISH

    partitions: tuple[str, ...] = ()
    force: bool = False
    pointers_only: bool = False
    newest: bool = False
    archive_now: bool = False

    def __post_init__(self) -> None:
        IntervalArguments.__post_init__(self)
        object.__setattr__(self, "partitions", text_list(self.partitions, "partitions", allow_empty=True))


#: Arguments of an ingestion.
IngestJob = IngestCommand | StreamCommand | ReplayCommand
#: Arguments of a job.
JobCommand = IngestJob | ServiceCommand | PublishCommand
_INGESTIONS: Mapping[str, type[JobCommand]] = {RUN: IngestCommand, STREAM: StreamCommand, REPLAY: ReplayCommand}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Arguments that some jobs refuse, because ignoring them would change the result that the user expects."""

    names: tuple[str, ...]
    jobs: tuple[type[JobCommand], ...]
    text: str


_REFUSALS = (
    _Refusal(
        names=("also",),
        jobs=(IngestCommand, StreamCommand, ReplayCommand, PublishCommand),
        text="{verb} works on one table; --table was given {count} times",
    ),
    _Refusal(
        names=("input",),
        jobs=(ServiceCommand, PublishCommand),
        text="--input: {verb} works on the whole table, not on an input",
    ),
    _Refusal(
        names=("every", "run_for"),
        jobs=(IngestCommand, ReplayCommand, ServiceCommand, PublishCommand),
        text="{flag}: `{verb} {action}` runs once; use `ingest stream`",
    ),
    _Refusal(
        names=("interval_start", "interval_end", "full_refresh", "resnapshot"),
        jobs=(StreamCommand,),
        text="{flag}: a stream continues from the checkpoint; use `ingest run`",
    ),
    _Refusal(
        names=("interval_start", "interval_end", "full_refresh"),
        jobs=(ReplayCommand,),
        text="`lakehouse ingest replay` reads dead letters: it has no interval and no --full-refresh",
    ),
    _Refusal(
        names=("commit", "dead_letters"),
        jobs=(IngestCommand, StreamCommand),
        text="--commit and --dead-letters select the letters of `lakehouse ingest replay`",
    ),
    _Refusal(
        names=("end_if_idle",),
        jobs=(StreamCommand, ReplayCommand, ServiceCommand, PublishCommand),
        text="--end-if-idle needs `ingest run --check`, not `{verb} {action}`",
    ),
)


def command_of(verb: str, action: str, **arguments: Any) -> JobCommand:
    """Return the command for a job.

    Arguments of other jobs are ignored, so that a caller can pass the parameters of any run.

    Args:
        verb: Noun of the command line, such as `ingest` or `clean`.
        action: Verb of the command line, such as `run`.
        arguments: Fields of the kinds of `JobCommand`.

    Raises:
        UserError: The job is unknown, a value is wrong, or the result would differ from the request.
    """
    kind = _kind_of(verb, action)
    if kind is ServiceCommand:
        arguments["service"] = verb
    for refusal in _REFUSALS:
        name = next((name for name in refusal.names if kind in refusal.jobs and arguments.get(name)), None)
        if name is not None:
            flag = "--table" if name == "also" else f"--{name.replace('_', '-')}"
            count = 1 + len(arguments.get("also", ()))
            raise UserError(refusal.text.format(verb=verb, action=action, flag=flag, count=count), flag=flag)
    return kind(**{name: value for name, value in arguments.items() if name in field_names(kind)})


def field_names(kind: type[JobCommand]) -> frozenset[str]:
    """Return the argument names for a kind of job."""
    return frozenset(field.name for field in fields(kind))


def parse_command(argv: Sequence[str]) -> JobCommand:
    """Parse `verb action --flag value ...`; raise UserError for unknown, missing and repeated arguments."""
    verb, action, *rest = (*argv, "", "")[: max(2, len(argv))]
    if not verb or not action or verb.startswith("--") or action.startswith("--"):
        raise UserError(f"expected a verb and an action, as in 'ingest run', not {' '.join(argv[:2])!r}")
    values: dict[str, Any] = {}
    options: dict[str, str] = {}
    lists: dict[str, list[str]] = {flag.field: [] for flag in ALL_FLAGS if flag.form is FlagForm.REPEATED}
    for flag, value in _flags(rest):
        if flag.form is FlagForm.PAIRS:
            key, equals, text = value.partition("=")
            if not equals or not key or key in options:
                raise UserError(f"--option {key}: expected key=value, each key once", option=key)
            options[key] = text
        elif flag.form is FlagForm.REPEATED:
            lists[flag.field].append(value)
        elif flag.field in values:
            raise UserError(f"{flag.flag} was given twice", flag=flag.flag)
        else:
            values[flag.field] = True if flag.form is FlagForm.SWITCH else value
    tables = lists.pop("tables")
    if not tables:
        raise UserError(f"{verb} {action} needs --table: a table spec, a table's location, or namespace.table")
    values |= {name: tuple(texts) for name, texts in lists.items()}
    return command_of(verb, action, **values, table=tables[0], also=tuple(tables[1:]), options=options)


def _kind_of(verb: str, action: str) -> type[JobCommand]:
    """Return the command class of a job. An unknown noun is treated as a service; `check_command` refuses it later."""
    kinds = _INGESTIONS if verb == INGEST else {RUN: PublishCommand if verb == PUBLISH else ServiceCommand}
    kind = kinds.get(action)
    if kind is None:
        raise UserError(
            f"unknown job '{verb} {action}'.{nearest(action, kinds)} Jobs of {verb} are {', '.join(kinds)}",
            action=action,
        )
    return kind


def _flags(words: Sequence[str]) -> Iterator[tuple[JobFlag, str]]:
    """Yield (flag, value) from `--flag value` and `--flag=value`."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        flag = _FLAGS.get(name)
        if flag is None:
            names = ", ".join(_FLAGS)
            raise UserError(f"unknown argument {word!r}.{nearest(name, _FLAGS)} Known: {names}.", flag=name)
        if flag.form is FlagForm.SWITCH:
            if equals:
                raise UserError(f"{name} takes no value", flag=name)
        elif not equals:
            following = next(rest, None)
            if following is None:
                raise UserError(f"{name} needs a value", flag=name)
            value = following
        yield flag, value


def _moment(flag: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{flag} {text!r} is not a time in ISO 8601, such as 2026-01-31T00:00:00+00:00") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
