"""ORM classes of the catalog's tables. Times are UTC milliseconds, documents are JSON.

namespaces ─< tables ─< specs (versions)         policies: of a namespace, of a table, of a table's partitions
                 ├────< requests ─┐
                 ├────< decisions ┼─ runs        leases: of runs, with a growing fencing token
                 └────< runs ─────┘
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Boolean, Float, ForeignKey, Index, Integer, MetaData, String, Text
from sqlalchemy import UniqueConstraint as Unique
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

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
    """A registered table. `spec_version` is the version of the spec in force."""

    __tablename__ = "lakehouse_tables"
    __table_args__ = (Unique("namespace", "name"), Unique("location"))

    id: Mapped[int] = mapped_column(_Id, primary_key=True)
    namespace: Mapped[str] = mapped_column(String(200), ForeignKey("lakehouse_namespaces.name"))
    name: Mapped[str] = mapped_column(String(200))
    location: Mapped[str] = mapped_column(String(700))
    spec_version: Mapped[int] = mapped_column(Integer)
    created_ms: Mapped[int]


class SpecRow(Base):
    """One version of a table's spec as a document. Versions count from 1 and are immutable.

    `author` is the user that put it in force, `source` the path of its file.
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

    Empty text means "any": databases differ in whether a unique constraint treats nulls as equal.
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
    """One run of a service on a table, over all its tries, with its predicted and actual numbers."""

    __tablename__ = "lakehouse_runs"
    __table_args__ = (Unique("run_id", "table_id", "service"), Index(None, "table_id", "service", "started_ms"))

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


class LeaseRow(Base):
    """The holder of `key` and its expiry time. `token` grows with each acquisition and identifies a stale holder."""

    __tablename__ = "lakehouse_leases"

    key: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    token: Mapped[int]
    expires_ms: Mapped[int]
