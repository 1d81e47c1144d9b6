"""Publish partitions in a Hive Metastore from Airflow, and tell other DAGs of them.

    signals ──► publish ──► archive_due ──► archive[0..1]     pointers need no Spark; only copies are a spark-submit
                   └─────► signals_accepted                   a signal that names no partition fails the run, last

Each partition that readers see since the run began is one event of the asset `hive://database/table`, whoever made it
appear: a try that died after publishing is made good by the next one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from airflow.sdk import Asset, BaseOperator, Context, XComArg, task
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from lakehouse.errors import UserError
from lakehouse.model.texts import text_list
from lakehouse.spec.contracts.job import JobCommand, JobReport, JobStatus
from lakehouse.spec.publish import PublishSpec
from lakehouse_airflow.assets import PUBLISHED, drop_events, published_asset
from lakehouse_airflow.commands import run_command
from lakehouse_airflow.operators import LakehouseOperator
from lakehouse_airflow.processes import end_job
from lakehouse_airflow.window import IntervalMixin, given_interval, is_backfill, is_by_event, required_interval

#: Slots of their own: publication takes seconds and waits for no Spark job.
POOL = "lakehouse_publish"
#: An event's key is a column of Airflow's database.
_LONGEST_KEY = 250


class PublishPartitionsOperator(IntervalMixin, BaseOperator):
    """Publish what is ready of one table, as pointers, without Spark; return what readers see since the run began.

    `table` is a table spec with `services.publish`, or the name of such a table in the catalog. `partitions` narrow the
    run to these; with `by_interval` those of the run's data interval are ready beside what else is; `force` publishes
    again what is published, where partitions or an interval are given; `newest` takes the newest version instead of
    that of the event time; `signals` heeds the `partitions` in the extra of the asset events that started the run. The
    run's params `partitions`, `interval_start`, `interval_end`, `force`, `newest`, `dry_run` and `options` come first.
    A backfill publishes its interval again. Intervals are those of `periods`, whole ones of the publication.

    Each partition is an event of the asset `hive://database/table` (through the alias `lakehouse.published`), with
    `partition`, `table`, `instant`, `event_time` and `published` in its extra, and one with its name as key of each
    asset among `outlets`. The result has the `interval` that the run took, and its status: `nothing_to_do` if nothing
    appeared, and not all of its `partitions` are there. Such a run succeeds without an event; it is skipped with
    `skip_if_nothing_to_do`. With `by_interval`, a run that an event started has no interval; any other must have one.
    """

    template_fields: Sequence[str] = ("table", "partitions", "options")

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
        kwargs["outlets"] = [PUBLISHED, *(kwargs.get("outlets") or ())]
        super().__init__(**kwargs)
        self.table = table
        # The output of another task is a list only when the task runs.
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
        """Heed signals, publish, and tell of what readers see."""
        instance = context["ti"]
        self._job_id = f"{instance.dag_id}/{instance.run_id}/{instance.task_id}"
        end_job(self._job_id)
        try:
            return self._publish(context)
        except UserError as error:
            raise AirflowFailException(str(error)) from error
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
            raise AirflowSkipException("a dry run: see the log for what would be done")
        refused = self._signal(context)
        for words in runs:
            self.log.info("%s", self._command("run", *words, "--pointers-only").strip())
        found = json.loads(self._command("due", "--output", "json"))
        rows = json.loads(self._command("status", *_flags(self.partitions), "--output", "json"))
        new = published_since(rows, run_start(context))
        tell(self, context, found["table"], new)
        there = bool(self.partitions) and all(is_shown(row) for row in rows)
        told = {
            "status": str(JobStatus.COMMITTED if new or there else JobStatus.NOTHING_TO_DO),
            "table": found["table"],
            "published": new,
            "waiting": found["waiting"],
            "refused": refused,
            "lost": found["lost"],
            "expired": found["expired"],
            "interval": None if interval is None else "/".join(interval),
        }
        if not (new or there):
            waits = "; ".join(f"{row['partition']} {row['why']}" for row in rows if self.partitions)
            why = f"nothing was published of {self.table}: {waits or 'nothing is ready'}"
            self.log.info("%s", why)
            if self.skip_if_nothing_to_do:
                context["ti"].xcom_push(key="return_value", value=told)
                raise AirflowSkipException(why)
        return told

    def _runs(self, context: Context) -> tuple[tuple[str, str] | None, list[list[str]]]:
        """Return the run's interval, and what `lakehouse publish run` is told, once or twice.

        Twice: of the interval, and of all that is ready.
        """
        params = context.get("params") or {}
        extra = [flag for flag, name in (("--newest", "newest"),) if getattr(self, name) or params.get(name)]
        forced = ["--force"] if self.force or params.get("force") else []
        named = _flags(self.partitions)
        given = given_interval(context)
        if given is not None:
            return given, [[*named, *_bounds(given), *forced, *extra]]
        if named:
            return None, [[*named, *forced, *extra]]
        if is_backfill(context):
            whole = self._whole(context, backfill=True)
            return whole, [[*_bounds(whole), "--force", *extra]]
        if self.by_interval and not is_by_event(context):
            whole = self._whole(context)
            return whole, [[*_bounds(whole), *forced, *extra], extra]
        return None, [extra]

    def _whole(self, context: Context, *, backfill: bool = False) -> tuple[str, str]:
        """Return the run's data interval in whole periods; raise UserError if it has none."""
        interval = required_interval(context)
        return whole_periods(*interval, timezone=self.timezone, granularity=self.granularity, backfill=backfill)

    def _signal(self, context: Context) -> str | None:
        """Say that the partitions that events name are ready, and publish them at once; return why it was refused."""
        names = signalled(context) if self.signals else []
        refused = self._refused(names)
        if refused and len(names) > 1:
            # The others are ready all the same.
            refused = [why for name in names for why in self._refused([name])]
        return "; ".join(refused) or None

    def _refused(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        try:
            self.log.info("%s", self._command("signal", *_flags(names), "--run").strip())
        except AirflowFailException as refused:
            self.log.error("%s", refused)
            return [str(refused)]
        return []

    def _command(self, verb: str, *words: str) -> str:
        options = [word for key, value in sorted(self.options.items()) for word in ("--option", f"{key}={value}")]
        return run_command(["publish", verb, "--table", self.table, *words, *options], job_id=self._job_id)


class ArchivePartitionsOperator(LakehouseOperator):
    """Give partitions that are old enough files of their own, and those whose logs must be merged before they appear.

    One spark-submit. Those that appear are told of as by PublishPartitionsOperator; `told_by` is the task that has told
    of the others.
    """

    def __init__(self, *, table: str, told_by: str, **kwargs: Any) -> None:
        kwargs["outlets"] = [PUBLISHED, *(kwargs.get("outlets") or ())]
        super().__init__(verb="publish", action="run", table=table, **kwargs)
        self.told_by = told_by

    def interval(self, context: Context) -> tuple[str, str] | None:
        """Return None: what is to be archived was chosen by its age."""
        return None

    def _command(self, context: Context) -> JobCommand:
        return replace(super()._command(context), partitions=(), force=False)

    def _success(self, context: Context, command: JobCommand, report: JobReport | None, path: Path) -> dict[str, Any]:
        outlets: list[Any] = list(self.outlets)
        result = super()._success(context, command, report, path)
        # Which events there are is seen from the metastore, also after a try that found nothing more to do.
        self.outlets = outlets
        words = ["publish", "status", "--table", command.table, "--output", "json"]
        told = context["ti"].xcom_pull(task_ids=self.told_by) or {}
        known = {row["partition"] for row in told.get("published", ())}
        rows = published_since(json.loads(run_command(words)), run_start(context))
        tell(self, context, str(told.get("table", "")), [row for row in rows if row["partition"] not in known])
        return result


@task
def archive_due(table: str, **context: Any) -> list[str]:
    """Task: the table, if something of it is to be copied into files of its own now, or has begun to be; else none."""
    if (context.get("params") or {}).get("dry_run"):
        return []
    try:
        found = json.loads(run_command(["publish", "due", "--table", table, "--output", "json"]))
    except UserError as error:
        raise AirflowFailException(str(error)) from error
    return [table] if found["to archive"] or found["begun"] else []


@task
def signals_accepted(told: Mapping[str, Any] | None) -> None:
    """Task: fail if a signal named what cannot be published, after everything else was."""
    if told and told.get("refused"):
        raise AirflowFailException(str(told["refused"]))


def signalled(context: Mapping[str, Any]) -> list[str]:
    """Return the partitions that the extra of the asset events that started the run says are ready."""
    events = context.get("triggering_asset_events") or {}
    names: set[str] = set()
    for asset in events:
        for event in events[asset]:
            given = (event.extra or {}).get("partitions") or ()
            names |= {given} if isinstance(given, str) else {str(name) for name in given}
    return sorted(names)


def whole_periods(start: str, end: str, *, timezone: str, granularity: str, backfill: bool = False) -> tuple[str, str]:
    """Return the interval from the beginning of the day (or hour) of `start`, in a time zone.

    It ends where it did, for what comes after has not ended; that of a backfill is of whole ones, and at least one.
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


def published_since(rows: Sequence[Mapping[str, Any]], since: datetime) -> list[dict[str, Any]]:
    """Return the partitions that appeared since then, as events tell of them."""
    from_here = since.astimezone(UTC).replace(microsecond=0)
    return [
        {
            "partition": row["partition"],
            "instant": row["version"],
            "event_time": row["event_time"],
            "published": row["published"],
        }
        for row in rows
        if is_shown(row) and row["published"] and datetime.fromisoformat(row["published"]) >= from_here
    ]


def is_shown(row: Mapping[str, Any]) -> bool:
    """Whether readers see a partition as it was published, by a row of `lakehouse publish status`."""
    return str(row["seen"]).startswith("version ")


def run_start(context: Mapping[str, Any]) -> datetime:
    """Return when the run began: before any try of any task."""
    run = context.get("dag_run")
    started: datetime = getattr(run, "start_date", None) or context["ti"].start_date
    return started


def tell(operator: BaseOperator, context: Context, target: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Put one event per partition into what the task leaves: of the published table, and with its name as key."""
    for row in rows:
        context["outlet_events"][PUBLISHED].add(published_asset(target), extra={"table": target, **row})
    names = [row["partition"] for row in rows if len(row["partition"]) <= _LONGEST_KEY]
    if not names:
        # Airflow would make an event of every asset among the outlets.
        drop_events(operator)
    for outlet in operator.outlets if names else ():
        if isinstance(outlet, Asset):
            context["outlet_events"][outlet].extra = {"table": target}
            context["outlet_events"][outlet].add_partitions(names)


def _flags(names: Sequence[str]) -> list[str]:
    return [word for name in names for word in ("--partition", name)]


def _bounds(interval: tuple[str, str]) -> list[str]:
    return ["--interval-start", interval[0], "--interval-end", interval[1]]
