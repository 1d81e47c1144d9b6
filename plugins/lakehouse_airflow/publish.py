"""Publish partitions in a Hive Metastore from Airflow, and emit an asset event for each of them.

    signals ──► publish ──► archive_due ──► archive[0..1]     pointers need no Spark; a copy is a spark-submit
                   └─────► signals_accepted                   fails the run last, if a signal is unknown

Each partition that became visible since the run began gets one event of the asset `hive://database/table`, regardless
of the try that published it. If a try fails after publishing, the next try therefore emits its events.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from lakehouse.errors import UserError
from lakehouse.model.texts import text_list
from lakehouse.spec.contracts.job import JobReport, JobStatus
from lakehouse.spec.contracts.job_text import report_text
from lakehouse.spec.contracts.publication import (
    PartitionEvent,
    PublicationDue,
    PublicationStatus,
    PublishResult,
    visible_since,
)
from lakehouse.spec.job_command import JobCommand, PublishCommand
from lakehouse.spec.report_store import FolderStore
from lakehouse.spec.table.publish import PublishSpec
from lakehouse_airflow.assets import PUBLISHED, drop_events, published_asset
from lakehouse_airflow.commands import run_command
from lakehouse_airflow.compat import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    Asset,
    BaseOperator,
    Context,
    XComArg,
    add_keyed_events,
    task,
    triggering_events,
)
from lakehouse_airflow.data_intervals import (
    IntervalMixin,
    is_asset_triggered,
    is_backfill,
    params_interval,
    required_interval,
)
from lakehouse_airflow.forms import check_conf
from lakehouse_airflow.job_reports import read_report
from lakehouse_airflow.lineage import LineageMixin, lineage_variables
from lakehouse_airflow.operators import LakehouseOperator
from lakehouse_airflow.processes import end_job
from lakehouse_airflow.refusals import noted_refusals
from lakehouse_airflow.task_heartbeat import task_variables

#: Pool for publications. It is separate, because a publication takes seconds and should not wait for Spark jobs.
POOL = "lakehouse_publish"
_DOC = """Publishes the ready partitions of the table in the Hive Metastore as pointers, without Spark.

The log names the published partitions, and why others wait. Each partition that became visible gets an asset event.
"""
#: Maximum length of an asset event's partition key in Airflow's database.
_LONGEST_KEY = 250


class PublishPartitionsOperator(LineageMixin, IntervalMixin, BaseOperator):
    """Publish the ready partitions of one table as pointers, without Spark; return a PublishResult as a mapping.

    Each partition that became visible gets an event of the asset `hive://database/table` (through the alias
    `lakehouse.published`); its extra is a PartitionEvent. It also gets an event of each asset in `outlets`, with the
    partition name as key. A run without such events succeeds with the status `nothing_to_do`.

    The run's params `partitions`, `interval_start`, `interval_end`, `force`, `newest`, `dry_run` and `options` override
    the arguments. A backfill republishes its interval.

    Args:
        table: Table spec with `services.publish`, or the name of such a table in the catalog.
        partitions: Limit the run to these partitions; empty means all.
        by_interval: Treat the partitions in the run's data interval as ready, in addition to other ready partitions. A
            run that an asset event started has no interval; any other run must have one.
        force: Publish again; allowed only with partitions or an interval.
        newest: Publish the newest version instead of the version by event time.
        signals: Also publish the `partitions` in the extra of the asset events that started the run.
        periods: The declaration of the publication; intervals are rounded to its whole periods.
        options: Options of this run only.
        skip_if_nothing_to_do: Skip the task and its downstream tasks if there is nothing to publish.
        kwargs: Arguments of BaseOperator.
    """

    template_fields: Sequence[str] = ("table", "partitions", "options")

    # parameters: the arguments of an Airflow operator
    def __init__(
        self,
        *,
        table: str,
        partitions: str | Sequence[str] = (),
        by_interval: bool = False,
        force: bool = False,
        newest: bool = False,
        signals: bool = False,
        periods: PublishSpec | None = None,
        options: Mapping[str, str] | None = None,
        skip_if_nothing_to_do: bool = False,
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("pool", POOL)
        kwargs.setdefault("doc_md", _DOC)
        kwargs["outlets"] = [PUBLISHED, *(kwargs.get("outlets") or ())]
        super().__init__(**kwargs)
        self.table = table
        # If `partitions` is the output of another task, it only becomes a list when this task runs.
        self.partitions: Any = (
            partitions if isinstance(partitions, XComArg) else list(text_list(partitions, "partitions"))
        )
        self.by_interval = by_interval
        self.force = force
        self.newest = newest
        self.signals = signals
        self.timezone = periods.timezone if periods is not None else "UTC"
        self.granularity = periods.granularity if periods is not None else "day"
        self.options = dict(options or {})
        self.skip_if_nothing_to_do = skip_if_nothing_to_do
        self._job_id: str | None = None
        self._check_schedule(self._dag)

    def execute(self, context: Context) -> dict[str, Any]:
        """Publish ready and signalled partitions, and emit events for the partitions that became visible."""
        instance = context["ti"]
        self._job_id = f"{instance.dag_id}/{instance.run_id}/{instance.task_id}"
        end_job(self._job_id)
        try:
            with noted_refusals(context):
                check_conf(context)
                return self._publish(context)
        finally:
            end_job(self._job_id)

    def on_kill(self) -> None:
        """End the process of the command."""
        if self._job_id is not None:
            end_job(self._job_id)

    def _publish(self, context: Context) -> dict[str, Any]:
        params = context.get("params") or {}
        self.partitions = list(text_list(params.get("partitions") or self.partitions, "partitions"))
        interval, runs = self._runs(context)
        if params.get("dry_run"):
            for words in runs:
                self.log.info("would do:\n%s", self._command("plan", *words))
            raise AirflowSkipException("dry run: the log lists the planned actions")
        refused = self._signal(context)
        for words in runs:
            self._run(*words)
        due = PublicationDue.from_json(self._command("due", "--output", "json"))
        words = [*_partition_flags(self.partitions), "--output", "json"]
        status = PublicationStatus.from_json(self._command("status", *words))
        events = visible_since(status, run_start(context))
        add_partition_events(self, context, status.target, events)
        all_visible = bool(self.partitions) and all(row.is_visible for row in status.partitions)
        has_result = bool(events) or all_visible
        result = PublishResult(
            status=JobStatus.COMMITTED if has_result else JobStatus.NOTHING_TO_DO,
            table=status.target,
            published=events,
            waiting=due.waiting,
            refused=refused,
            lost=due.lost,
            expired=due.expired,
            interval=None if interval is None else "/".join(interval),
        ).to_mapping()
        if not has_result:
            waits = "; ".join(f"{row.partition} {row.reason}" for row in status.partitions if self.partitions)
            message = f"no partition of {self.table} was published: {waits or 'nothing is ready'}"
            self.log.info("%s", message)
            if self.skip_if_nothing_to_do:
                context["ti"].xcom_push(key="return_value", value=result)
                raise AirflowSkipException(message)
        return result

    def _run(self, *words: str) -> None:
        """Publish the ready partitions, and keep the report, which also contains the lineage if that is enabled."""
        with tempfile.TemporaryDirectory(prefix="lakehouse-publish-") as folder:
            path = Path(folder) / "report.json"
            try:
                self._command("run", *words, "--pointers-only", "--report", str(path), watched=path)
            except AirflowException as error:
                # If the caller reads the report, the job writes its error only to the report.
                failed = read_report(FolderStore(path))
                if failed is None or failed.error is None:
                    raise
                raise type(error)(f"lakehouse publish run: {failed.error.kind}: {failed.error.message}") from error
            report = read_report(FolderStore(path))
        if report is not None:
            self.job_reports = (*self.job_reports, report)
            self.log.info("%s", report_text(report))

    def _runs(self, context: Context) -> tuple[tuple[str, str] | None, list[list[str]]]:
        """Return the run's interval, and the arguments for one or two calls of `lakehouse publish run`.

        With `by_interval` there are two calls: one for the interval, one for all other ready partitions.
        """
        params = context.get("params") or {}
        extra = [flag for flag, name in (("--newest", "newest"),) if getattr(self, name) or params.get(name)]
        forced = ["--force"] if self.force or params.get("force") else []
        named = _partition_flags(self.partitions)
        requested = params_interval(context)
        if requested is not None:
            return requested, [[*named, *_bounds(requested), *forced, *extra]]
        if named:
            return None, [[*named, *forced, *extra]]
        if is_backfill(context):
            whole = self._whole(context, backfill=True)
            return whole, [[*_bounds(whole), "--force", *extra]]
        if self.by_interval and not is_asset_triggered(context):
            whole = self._whole(context)
            return whole, [[*_bounds(whole), *forced, *extra], extra]
        return None, [extra]

    def _whole(self, context: Context, *, backfill: bool = False) -> tuple[str, str]:
        """Return the run's data interval in whole periods; raise UserError if it has none."""
        interval = required_interval(context)
        return whole_periods(*interval, timezone=self.timezone, granularity=self.granularity, backfill=backfill)

    def _signal(self, context: Context) -> str | None:
        """Publish the partitions in asset events. Return the error message for refused signals, or None."""
        names = signalled_partitions(context) if self.signals else []
        errors = self._send_signal(names)
        if errors and len(names) > 1:
            # A wrong partition name must not prevent the publication of the others.
            errors = [error for name in names for error in self._send_signal([name])]
        return "; ".join(errors) or None

    def _send_signal(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        try:
            self.log.info("%s", self._command("signal", *_partition_flags(names), "--run").strip())
        except AirflowFailException as error:
            self.log.error("%s", error)
            return [str(error)]
        return []

    def _command(self, verb: str, *words: str, watched: Path | None = None) -> str:
        """Run a `lakehouse publish` command.

        If it gets the path of a report, its process ends when this task has ended.
        """
        options = [word for key, value in sorted(self.options.items()) for word in ("--option", f"{key}={value}")]
        words = ("publish", verb, "--table", self.table, *words, *options)
        variables = lineage_variables() | ({} if watched is None else task_variables(str(watched)))
        return run_command(words, job_id=self._job_id, variables=variables)


class ArchivePartitionsOperator(LakehouseOperator):
    """Copy partitions into separate files with one spark-submit; return the job's report.

    Copied are partitions older than `archive_after`, and new partitions whose log files must be merged. The task emits
    events for partitions that became visible, except those in the result of the task `publish_task_id`, a
    PublishPartitionsOperator.
    """

    def __init__(self, *, table: str, publish_task_id: str, **kwargs: Any) -> None:
        kwargs["outlets"] = [PUBLISHED, *(kwargs.get("outlets") or ())]
        super().__init__(verb="publish", action="run", table=table, **kwargs)
        self.publish_task_id = publish_task_id

    def interval(self, context: Context) -> tuple[str, str] | None:
        """Return None, because the age of a partition decides, not the data interval."""
        return None

    def _command(self, context: Context) -> JobCommand:
        command = super()._command(context)
        assert isinstance(command, PublishCommand), "the verb is publish"
        return replace(command, partitions=(), force=False)

    def _success(self, context: Context, command: JobCommand, report: JobReport | None) -> dict[str, Any]:
        outlets: list[Any] = list(self.outlets)
        result = super()._success(context, command, report)
        # The events are derived from the metastore, so a try that had nothing to do also emits them.
        self.outlets = outlets
        words = ["publish", "status", "--table", command.table, "--output", "json"]
        status = PublicationStatus.from_json(run_command(words))
        value = context["ti"].xcom_pull(task_ids=self.publish_task_id)
        emitted = {row.partition for row in PublishResult.from_mapping(value).published} if value else set()
        events = [row for row in visible_since(status, run_start(context)) if row.partition not in emitted]
        add_partition_events(self, context, status.target, events)
        return result


@task
def archive_due(table: str, **context: Any) -> list[str]:
    """Task: return the table in a list if partitions must be copied or a copy was interrupted."""
    if (context.get("params") or {}).get("dry_run"):
        return []
    try:
        due = PublicationDue.from_json(run_command(["publish", "due", "--table", table, "--output", "json"]))
    except UserError as error:
        raise AirflowFailException(str(error)) from error
    return [table] if due.archive or due.begun else []


@task
def signals_accepted(result: Mapping[str, Any] | None) -> None:
    """Task: fail if a signal was refused. It runs last, so that other partitions are published first."""
    refused = PublishResult.from_mapping(result).refused if result else None
    if refused:
        raise AirflowFailException(refused)


def signalled_partitions(context: Mapping[str, Any]) -> list[str]:
    """Return the partition names in `extra["partitions"]` of the asset events that started the run."""
    names: set[str] = set()
    for event in triggering_events(context):
        named = event.extra.get("partitions") or ()
        names |= {named} if isinstance(named, str) else {str(name) for name in named}
    return sorted(names)


def whole_periods(start: str, end: str, *, timezone: str, granularity: str, backfill: bool = False) -> tuple[str, str]:
    """Extend an interval to start with the day (or hour) of `start` in a time zone.

    The end is not changed, because later periods have not ended. The interval of a backfill ends with a whole period
    and contains at least one.
    """
    zone, step = ZoneInfo(timezone), timedelta(hours=1) if granularity == "hour" else timedelta(days=1)

    def floor(moment: datetime) -> datetime:
        local = moment.astimezone(zone).replace(tzinfo=None, minute=0, second=0, microsecond=0)
        return local if granularity == "hour" else local.replace(hour=0)

    first, last = (datetime.fromisoformat(bound) for bound in (start, end))
    begin = floor(first)
    if backfill:
        last = max(floor(last), begin + step).replace(tzinfo=zone)
    return begin.replace(tzinfo=zone).astimezone(UTC).isoformat(), last.astimezone(UTC).isoformat()


def run_start(context: Mapping[str, Any]) -> datetime:
    """Return the start of the run, which precedes every try of its tasks, in UTC."""
    run = context.get("dag_run")
    started: datetime = getattr(run, "start_date", None) or context["ti"].start_date
    return started.astimezone(UTC)


def add_partition_events(
    operator: BaseOperator, context: Context, target: str, events: Sequence[PartitionEvent]
) -> None:
    """Emit one event per partition for the published table, and a keyed event per partition for each other outlet."""
    for event in events:
        context["outlet_events"][PUBLISHED].add(published_asset(target), extra=event.to_mapping())
    names = [event.partition for event in events if len(event.partition) <= _LONGEST_KEY]
    if not names:
        # Otherwise Airflow would also emit an event without a key for every asset in the outlets.
        drop_events(operator)
    for outlet in operator.outlets if names else ():
        if isinstance(outlet, Asset):
            add_keyed_events(context["outlet_events"][outlet], {"table": target}, names)


def _partition_flags(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("--partition", name)]


def _bounds(interval: tuple[str, str]) -> list[str]:
    return ["--interval-start", interval[0], "--interval-end", interval[1]]
