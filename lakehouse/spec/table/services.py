"""The table services and their properties.

Everything else that lists services is derived from `SERVICE_SPECS`: CLI verbs, sections of the table spec, policies,
decisions, DAGs and pages. Every process that prints help imports this module, so it imports little.
`lakehouse.spec.table.service_settings` parses the settings of a service.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import UserError, nearest
from lakehouse.model.commit import Operation
from lakehouse.model.instant import Action

_HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """One table service: the value from which CLI verbs, spec sections, decisions, runs, DAGs and pages are derived.

    Attributes:
        name: Name of the CLI verb, the section in the table spec, the policy and the DAG `services.<name>`.
        attribute: Name of the property in `table.services`; empty if it is the same name.
        options: Field of `Policies` that holds the options of the service.
        text: Sentence for the list of commands, without its full stop.
        doc: Documentation of the DAG in Markdown.
        work: Template of `lakehouse.spec.decision_text` for the sentence about a run in decisions. If it is empty,
            services that hold file groups use the sentence for rewrites, and others the number of files.
        deadline_s: Default of the maximum number of seconds that the service may be due without a run.
        action: Timeline action of the service's plans; None if a run plans and executes in one step.
        operation: Operation in the commit metadata of the service; None if it makes no commits.
        by_partition: Whether a run can be limited to some partitions, for example by a data interval.
        holds_file_groups: Whether pending plans hold file groups. Two such services never run on a table together.
        needs_spark: Whether a run uses the executors of a Spark session if there is one.
        conflicts_with_writers: Whether a writer that commits during a run can make the run useless.
        takes_pins: Whether a call can list instants (clean) or partitions (ttl) that must be kept.
        merge_on_read_only: Whether the service works on merge-on-read tables only.
        enabled_by_default: Whether the scheduler runs the service if no policy enables or disables it.
        pattern_settings: Settings that a policy may declare for the partitions that match a pattern.
        pattern_advice: Advice for messages about settings that apply to whole tables only.
    """

    name: str
    options: str
    text: str
    doc: str
    attribute: str = ""
    work: str = ""
    deadline_s: int = 24 * _HOUR_S
    action: Action | None = None
    operation: Operation | None = None
    by_partition: bool = False
    holds_file_groups: bool = False
    needs_spark: bool = True
    conflicts_with_writers: bool = False
    takes_pins: bool = False
    merge_on_read_only: bool = False
    enabled_by_default: bool = True
    pattern_settings: tuple[str, ...] = ()
    pattern_advice: str = "set it for the table, without a pattern"

    @property
    def property_name(self) -> str:
        """The name of the property in `table.services`."""
        return self.attribute or self.name

    @property
    def leaves_instants(self) -> bool:
        """Whether a run adds an instant to the timeline."""
        return self.action is not None or self.operation is not None


_RUN_OF_PARTITIONS = "run `lakehouse {} run --partition` for these partitions with `--option`"
_COMPACTION = (
    "Compaction: merges the log files of merge-on-read tables into base files, so that readers have less to merge.\n\n"
    "A run plans and executes while writers are active. The next run resumes the plan of a failed run. Between two "
    "compactions, a log compaction merges the log files of a file group into one, without base files."
)

#: All services. The order breaks ties, because a later service deletes files that an earlier one leaves behind.
SERVICE_SPECS = (
    ServiceSpec(
        name="compaction",
        options="compaction",
        text="Merge log files into new base files",
        doc=_COMPACTION,
        deadline_s=2 * _HOUR_S,
        action=Action.COMPACTION,
        operation=Operation.COMPACT,
        by_partition=True,
        holds_file_groups=True,
        merge_on_read_only=True,
        pattern_settings=("enabled", "log_bytes_threshold", "log_files_threshold"),
        pattern_advice=f"set it for the table, without a pattern, or {_RUN_OF_PARTITIONS.format('compaction')}",
    ),
    ServiceSpec(
        name="logcompaction",
        attribute="log_compaction",
        options="compaction",
        text="Merge the log files of a file group into one log file",
        doc=_COMPACTION,
        deadline_s=2 * _HOUR_S,
        action=Action.LOGCOMPACTION,
        operation=Operation.LOG_COMPACT,
        by_partition=True,
        holds_file_groups=True,
        merge_on_read_only=True,
        pattern_settings=("enabled", "log_blocks_threshold"),
    ),
    ServiceSpec(
        name="clustering",
        options="clustering",
        text="Merge small files into large ones and sort their rows",
        doc="Clustering: merges small files into large ones and sorts rows, so that queries skip files.\n\n"
        "A backfill clusters the partitions of its days again. Example for March: `airflow backfill create --dag-id "
        "services.clustering --from-date 2026-03-01T00:00:00+00:00 --to-date 2026-03-31T00:00:00+00:00`. Without the "
        "offset the dates are in Airflow's time zone, and the days of this DAG are in UTC.",
        action=Action.CLUSTERING,
        operation=Operation.CLUSTER,
        by_partition=True,
        holds_file_groups=True,
        pattern_settings=(
            "enabled",
            "small_file_bytes",
            "target_file_bytes",
            "group_bytes",
            "single_group",
            "whole_partitions",
        ),
        pattern_advice=f"set it for the table, without a pattern, or {_RUN_OF_PARTITIONS.format('clustering')}",
        conflicts_with_writers=True,
    ),
    ServiceSpec(
        name="index",
        options="indexing",
        text="Build indexes of the metadata table while writers are active",
        doc="Index: builds declared indexes of the metadata table while writers are active.\n\n"
        "From the plan on all commits maintain the index; readers use it when the build is complete. The next run "
        "resumes the plan of a failed run. `lakehouse index create` and `drop` declare and drop indexes.",
        work="reads {size} in {files:file}{time}; queries and writes can then use the index",
        deadline_s=12 * _HOUR_S,
        action=Action.INDEXING,
    ),
    ServiceSpec(
        name="ttl",
        options="ttl",
        text="Delete partitions that expired by age, count or size",
        doc="TTL: partitions expire by age, count or size; the next clean removes their files.\n\n"
        "`lakehouse ttl policy` edits the rules.",
        work="deletes {files:expired partition} with {benefit:file}{time}",
        operation=Operation.DELETE_PARTITION,
        needs_spark=False,
        takes_pins=True,
        pattern_settings=("enabled",),
        pattern_advice="declare a rule of the table with `lakehouse ttl policy set --pattern`, such as --partition-age",
    ),
    ServiceSpec(
        name="export",
        options="export",
        text="Keep Iceberg and Delta views of the newest version of a table",
        doc="Export: keeps views of tables for readers of Apache Iceberg and Delta Lake, next to the data.\n\n"
        "A table whose spec sets `services.export.formats` is due after each write that a view lacks. A run adds and "
        "removes the files that changed in one snapshot, so a second run changes nothing. The views of merge-on-read "
        "tables show base files only.",
        work="writes the metadata of the views; no data file is written{time}",
        deadline_s=2 * _HOUR_S,
        needs_spark=False,
    ),
    ServiceSpec(
        name="clean",
        options="clean",
        text="Remove files that no retained write needs",
        doc="Clean: removes files that no retained version needs.\n\n"
        "Files of savepoints, of pinned versions and of versions within the retention stay.",
        work="deletes {files:old file}{time}",
        deadline_s=12 * _HOUR_S,
        action=Action.CLEAN,
        takes_pins=True,
        pattern_advice="a clean retains versions of the whole table: set it for the table, without a pattern, or keep "
        "versions with `lakehouse savepoint create`",
    ),
    ServiceSpec(
        name="archive",
        options="archive",
        text="Move the oldest actions of the timeline to the archive",
        doc="Archive: moves the oldest instants from the active timeline to the archived timeline.\n\n"
        "Readers still find the times of archived commits.",
        work="archives {files:file} of the timeline{time}; every read and write then lists fewer files",
        deadline_s=12 * _HOUR_S,
        needs_spark=False,
    ),
    ServiceSpec(
        name="orphans",
        attribute="orphan_removal",
        options="orphans",
        text="Delete data files that no write names",
        doc="Orphans: deletes data files that no write names, left by failed tasks.\n\n"
        "Files of pending writes and files younger than `lakehouse.clean.orphans.hours` stay. Orphans of tables that "
        "other programs write are reported, unless `lakehouse.clean.orphans.shared` is true. Each table is searched "
        "every `lakehouse.orphans.every.hours`.",
        work="lists the files of the table, and deletes those that no commit has written{time}",
        needs_spark=False,
        enabled_by_default=False,
    ),
    ServiceSpec(
        name="validation",
        options="validation",
        text="Check listing, metadata table and footers; repair nothing",
        doc="Validation: checks a sample of the tables each night, and repairs nothing.\n\n"
        "A run compares the listing, the timeline and the metadata table, and reads footers of base files. A violation "
        "fails the run with its details. Each table is due every `lakehouse.validation.every.hours`.",
        work="compares the files of the table with its metadata{time}",
        enabled_by_default=False,
    ),
    ServiceSpec(
        name="sync",
        options="sync",
        text="Register a table with its partitions in a Hive Metastore or AWS Glue",
        doc="Sync: declares a table with its partitions in a Hive Metastore or AWS Glue, so that engines find it.\n\n"
        "A table whose spec sets `hoodie.datasource.hive_sync.enable: true` is due after each write that was not "
        "synced. A run compares all partitions, so a second run changes nothing.",
        work="writes the partitions and columns to the metastore{time}",
        deadline_s=2 * _HOUR_S,
        needs_spark=False,
    ),
)
#: The names of all services, in the same order.
SERVICES = tuple(spec.name for spec in SERVICE_SPECS)
#: Changes of the table version. They run on request, once, without policy and DAG, and the catalog records their runs.
VERSION_CHANGES = ("upgrade", "downgrade")
#: The names of the services that can be limited to some partitions.
BY_PARTITION = tuple(spec.name for spec in SERVICE_SPECS if spec.by_partition)


def service_spec(name: str) -> ServiceSpec:
    """Return the spec of a service; raise UserError with a similar name if there is no such service."""
    for spec in SERVICE_SPECS:
        if spec.name == name:
            return spec
    raise UserError(f"unknown service {name!r}.{nearest(name, SERVICES)} Known: {', '.join(SERVICES)}.", service=name)


def require_by_partition(spec: ServiceSpec) -> None:
    """Raise UserError if runs of a service cannot be limited to some partitions."""
    if not spec.by_partition:
        raise UserError(
            f"{spec.name} works on whole tables; only {', '.join(BY_PARTITION)} can be limited to partitions",
            service=spec.name,
        )
