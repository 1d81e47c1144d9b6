"""ORM classes of the catalog's tables. Times are UTC milliseconds, documents are JSON.

namespaces ─< tables ─< specs (versions)         policies: of a namespace, of a table, of a table's partitions
                 ├────< requests ─┐
                 ├────< decisions ┼─ runs        leases: of runs, with a growing fencing token
                 ├────< runs ─────┘
                 ├────< table_points       numbers of each hour
                 ├───── table_states       the newest numbers and problems
                 ├────< alarms             silences: of rules and scopes
                 └────< actions            of users
scans ─< scanned_tables: results of `lakehouse fleet scan`, also of tables that are not registered
job_documents: reports of jobs, heartbeats and stop requests (`lakehouse.platform.jobs.report_stores`)
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Boolean, Float, ForeignKey, Index, Integer, MetaData, String, Text, false
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

#: Characters of a table id; lakehouse assigns UUIDs.
LONGEST_ID = 200
#: Constraints have the same names in every database, so that migrations can refer to them.
_NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
# SQLite generates keys only for INTEGER columns.
_Id = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Base class of the catalog's tables."""

    metadata = MetaData(naming_convention=_NAMING)
    type_annotation_map: ClassVar[dict[Any, Any]] = {dict[str, Any]: JSON, str: String(512), int: BigInteger}


class NamespaceRow(Base):
    """A group of tables, with free-form properties."""

    __tablename__ = "lakehouse_namespaces"

    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    properties: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_ms: Mapped[int]


class TableRow(Base):
    """A registered table. `spec_version` is its current spec version.

    `identity` contains the name and the record key in the properties of the table, `uid` is its id there. An entry of
    an earlier version has no identity until its next write, and a table that cannot be written has no id.
    """

    __tablename__ = "lakehouse_tables"
    __table_args__ = (Unique("namespace", "name"), Unique("location"), Index(None, "uid", unique=True))

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    namespace: Mapped[str] = mapped_column(String(200), ForeignKey("lakehouse_namespaces.name"))
    name: Mapped[str] = mapped_column(String(200))
    location: Mapped[str] = mapped_column(String(700))
    spec_version: Mapped[int] = mapped_column(Integer)
    created_ms: Mapped[int]
    identity: Mapped[dict[str, Any] | None]
    uid: Mapped[str | None] = mapped_column(String(LONGEST_ID))


class SpecRow(Base):
    """One version of a table's spec as a document. Versions count from 1 and are immutable.

    `author` is the user that made it current, `source` is the path of its file.
    """

    __tablename__ = "lakehouse_specs"

    table_id: Mapped[int] = mapped_column(_Id, ForeignKey("lakehouse_tables.id"), primary_key=True)
    version: Mapped[int] = mapped_column(Integer, primary_key=True)
    document: Mapped[dict[str, Any]]
    author: Mapped[str] = mapped_column(default="")
    source: Mapped[str] = mapped_column(String(1000), default="", server_default="")
    created_ms: Mapped[int]


class PolicyRow(Base):
    """Settings of one service for a namespace, a table (`name`) or the partitions of a table that match `pattern`.

    An empty string means "any": databases differ in whether a unique constraint treats nulls as equal.
    """

    __tablename__ = "lakehouse_policies"
    __table_args__ = (Unique("namespace", "name", "pattern", "service"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    namespace: Mapped[str] = mapped_column(String(200), ForeignKey("lakehouse_namespaces.name"))
    name: Mapped[str] = mapped_column(String(200), default="")
    pattern: Mapped[str] = mapped_column(String(200), default="")
    service: Mapped[str] = mapped_column(String(50))
    settings: Mapped[dict[str, Any]]
    version: Mapped[int] = mapped_column(Integer)
    updated_ms: Mapped[int]
    author: Mapped[str] = mapped_column(default="", server_default="")


class RequestRow(Base):
    """A request to run a service, due or not. `run_id` is the run that took it."""

    __tablename__ = "lakehouse_requests"
    __table_args__ = (Index(None, "table_id", "service", "state"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    table_id: Mapped[int] = mapped_column(_Id, ForeignKey("lakehouse_tables.id"))
    service: Mapped[str] = mapped_column(String(50))
    parameters: Mapped[dict[str, Any]] = mapped_column(default=dict)
    requested_by: Mapped[str] = mapped_column(default="")
    requested_ms: Mapped[int]
    state: Mapped[str] = mapped_column(String(20))
    run_id: Mapped[str | None] = mapped_column(String(512))


class RunRow(Base):
    """One run of a service on a table, over all its tries, with its predicted and actual numbers.

    `failed_tries` counts the failures since the last success, `waits` the tries that only waited. `permanent` is true
    if another try does not resolve the last failure.
    """

    __tablename__ = "lakehouse_runs"
    __table_args__ = (
        Unique("run_id", "table_id", "service"),
        Index(None, "table_id", "service", "started_ms"),
        Index(None, "state", "started_ms"),
    )

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    run_id: Mapped[str]
    table_id: Mapped[int] = mapped_column(_Id, ForeignKey("lakehouse_tables.id"))
    service: Mapped[str] = mapped_column(String(50))
    state: Mapped[str] = mapped_column(String(20))
    tries: Mapped[int] = mapped_column(Integer, default=1)
    started_ms: Mapped[int]
    ended_ms: Mapped[int | None]
    instant: Mapped[str | None] = mapped_column(String(40))
    predicted: Mapped[dict[str, Any]] = mapped_column(default=dict)
    actual: Mapped[dict[str, Any]] = mapped_column(default=dict)
    error: Mapped[str | None] = mapped_column(Text)
    progress: Mapped[dict[str, Any] | None]
    failed_tries: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    waits: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    waiting_since_ms: Mapped[int | None]
    permanent: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())


class DecisionRow(Base):
    """A decision of the scheduler on one service and table; the newest ones are kept."""

    __tablename__ = "lakehouse_decisions"
    __table_args__ = (Index(None, "table_id", "service", "decided_ms"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    table_id: Mapped[int] = mapped_column(_Id, ForeignKey("lakehouse_tables.id"))
    service: Mapped[str] = mapped_column(String(50))
    decided_ms: Mapped[int]
    due: Mapped[bool] = mapped_column(Boolean)
    chosen: Mapped[bool] = mapped_column(Boolean)
    reason: Mapped[str] = mapped_column(Text)
    priority: Mapped[float] = mapped_column(Float)
    deadline_ms: Mapped[int | None]
    inputs: Mapped[dict[str, Any]] = mapped_column(default=dict)
    predicted: Mapped[dict[str, Any]] = mapped_column(default=dict)
    code: Mapped[str] = mapped_column(String(40), default="", server_default="")


class TableStateRow(Base):
    """The newest numbers, due services and problems of a table, and when the scheduler examines the table again.

    The scheduler examines a table if `changed_ms` is not 0, or if `look_at_ms` has passed. An examination that has seen
    the change resets `changed_ms`. `due` are the due services by name, `due_services` is their number. `severity` is
    the severity of the worst problem, or 0 if there is none. `error` is the reason why the table could not be read.
    """

    __tablename__ = "lakehouse_table_states"
    __table_args__ = (
        Index(None, "severity", "table_id"),
        Index(None, "changed_ms"),
        Index(None, "look_at_ms"),
        Index(None, "looked_ms"),
        Index(None, "due_services"),
    )

    table_id: Mapped[int] = mapped_column(_Id, ForeignKey("lakehouse_tables.id"), primary_key=True)
    changed_ms: Mapped[int] = mapped_column(default=0, server_default="0")
    looked_ms: Mapped[int] = mapped_column(default=0, server_default="0")
    look_at_ms: Mapped[int | None]
    severity: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    numbers: Mapped[dict[str, Any]] = mapped_column(default=dict)
    problems: Mapped[list[Any]] = mapped_column(JSON, default=list)
    due: Mapped[dict[str, Any]] = mapped_column(default=dict)
    due_services: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    error: Mapped[str | None] = mapped_column(Text)


class TablePointRow(Base):
    """The numbers of a table in one hour, for its history. Old hours are deleted."""

    __tablename__ = "lakehouse_table_points"
    __table_args__ = (Index(None, "hour_ms"),)

    table_id: Mapped[int] = mapped_column(_Id, ForeignKey("lakehouse_tables.id"), primary_key=True)
    hour_ms: Mapped[int] = mapped_column(primary_key=True)
    numbers: Mapped[dict[str, Any]] = mapped_column(default=dict)


class AlarmRow(Base):
    """An alarm of a rule. One alarm of a rule, table and subject is open at a time; resolved ones are the history.

    `notified` contains the notifiers that received the alarm, with times.
    """

    __tablename__ = "lakehouse_alarms"
    __table_args__ = (Index(None, "state", "table_id"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    rule: Mapped[str] = mapped_column(String(100))
    table_id: Mapped[int | None] = mapped_column(_Id, ForeignKey("lakehouse_tables.id"))
    subject: Mapped[str] = mapped_column(default="", server_default="")
    severity: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(20))
    value: Mapped[float | None] = mapped_column(Float)
    threshold: Mapped[float | None] = mapped_column(Float)
    text: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(Text, default="", server_default="")
    raised_ms: Mapped[int]
    seen_ms: Mapped[int]
    resolved_ms: Mapped[int | None]
    notified: Mapped[dict[str, Any]] = mapped_column(default=dict)


class SilenceRow(Base):
    """A time during which alarms of a rule (empty: all) and a scope are not sent.

    The scope is a namespace, a table's full name, or empty for all tables.
    """

    __tablename__ = "lakehouse_silences"

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    rule: Mapped[str] = mapped_column(String(100), default="", server_default="")
    scope: Mapped[str] = mapped_column(String(401), default="", server_default="")
    until_ms: Mapped[int]
    reason: Mapped[str] = mapped_column(Text)
    author: Mapped[str]
    created_ms: Mapped[int]


class ActionRow(Base):
    """An action of a user on a table, with its author, its parameters, and the request or DAG run that does it."""

    __tablename__ = "lakehouse_actions"
    __table_args__ = (Index(None, "table_id", "created_ms"),)

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    table_id: Mapped[int | None] = mapped_column(_Id, ForeignKey("lakehouse_tables.id"))
    subject: Mapped[str]
    action: Mapped[str] = mapped_column(String(50))
    parameters: Mapped[dict[str, Any]] = mapped_column(default=dict)
    author: Mapped[str]
    created_ms: Mapped[int]
    state: Mapped[str] = mapped_column(String(20))
    request_id: Mapped[int | None] = mapped_column(_Id)
    dag_id: Mapped[str] = mapped_column(String(250), default="", server_default="")
    dag_run_id: Mapped[str] = mapped_column(String(250), default="", server_default="")
    result: Mapped[dict[str, Any]] = mapped_column(default=dict)


class LeaseRow(Base):
    """The holder of `key` and its expiry time. `token` grows with each acquisition and identifies a stale holder."""

    __tablename__ = "lakehouse_leases"

    key: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    token: Mapped[int]
    expires_ms: Mapped[int]


class JobDocumentRow(Base):
    """A document of a job, such as its report: `job` is the path of the job, `name` that of the document."""

    __tablename__ = "lakehouse_job_documents"
    __table_args__ = (Index(None, "changed_ms"),)

    job: Mapped[str] = mapped_column(String(700), primary_key=True)
    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    content: Mapped[str] = mapped_column(Text)
    changed_ms: Mapped[int]


class ScanRow(Base):
    """The newest scan of a place for tables, with its `facts`: folders without table, and folders not scanned."""

    __tablename__ = "lakehouse_scans"

    place: Mapped[str] = mapped_column(String(700), primary_key=True)
    author: Mapped[str] = mapped_column(default="")
    started_ms: Mapped[int]
    seconds: Mapped[float] = mapped_column(Float)
    folders: Mapped[int]
    facts: Mapped[dict[str, Any]] = mapped_column(default=dict)


class ScannedTableRow(Base):
    """A table of a scan, as its contract (`lakehouse.spec.contracts.fleet_scan`)."""

    __tablename__ = "lakehouse_scanned_tables"

    place: Mapped[str] = mapped_column(String(700), ForeignKey("lakehouse_scans.place"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    location: Mapped[str] = mapped_column(String(2000))
    document: Mapped[dict[str, Any]]


#: Classes of the rows that belong to one table and are deleted with it, including its spec versions.
OF_TABLE: tuple[type[Any], ...] = (
    DecisionRow,
    RequestRow,
    RunRow,
    SpecRow,
    TableStateRow,
    TablePointRow,
    AlarmRow,
)
