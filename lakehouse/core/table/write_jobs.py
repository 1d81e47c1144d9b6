"""Run a `WriteJob`: create or open its table, check that both agree, and write the rows with one of the table's verbs.

The save modes have the meaning that they have for Hudi:

    append      write to the table; create it if it is missing
    overwrite   the table then has exactly these rows, except that `insert_overwrite` replaces only their partitions in
                Hudi's SQL; Hudi deletes the files of the table first, here one commit replaces all rows, so readers
                never see a missing table
    ignore      write only if there is no table
    error       raise an error if there is a table
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.layout.registry import unread_by
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.table import stored_options
from lakehouse.core.state.merge_config import payload_rule
from lakehouse.core.state.table_config import CDC_MODE, TableConfig
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.arguments import Outcome, WriteCall
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import UserError, nearest
from lakehouse.model.keys import KeyGeneratorType
from lakehouse.model.merge import MergeMode
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.creation import CREATE_DEFAULTS, READERS, VERSION, declared_readers
from lakehouse.spec.options.declarations import service_of
from lakehouse.spec.options.hudi.job_names import (
    DELETE_FIELD,
    DELETE_MARKER,
    GENERATOR,
    MERGE_MODE,
    ORDERING,
    PARTIAL_UPDATE,
    PARTITION_PATH,
    PAYLOAD,
    RECORD_KEY,
    TABLE_NAME,
    TABLE_TYPE,
)
from lakehouse.spec.options.hudi.write_job import (
    DELETE,
    DELETE_PARTITION,
    INSERT,
    INSERT_OVERWRITE_TABLE,
    PARTITIONS_TO_DELETE,
    UPSERT,
    WriteJob,
)

log = logging.getLogger(__name__)
_COMBINE = "hoodie.combine.before.insert"


class SaveMode(StrEnum):
    """The behaviour for an existing table; Spark's names."""

    APPEND = "append"
    OVERWRITE = "overwrite"
    IGNORE = "ignore"
    ERROR = "error"

    @classmethod
    def of(cls, text: str) -> SaveMode:
        """Return the mode with a name of Spark; raise UserError for another name."""
        name = {"errorifexists": "error", "default": "error"}.get(text.strip().lower(), text.strip().lower())
        if name not in tuple(cls):
            raise UserError(f"save mode {text!r} is not one of {', '.join(cls)}.{nearest(name, cls)}", argument="mode")
        return cls(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTarget:
    """An opened table with the operation and the options of the write; picklable parts only in `job`."""

    table: Table
    job: WriteJob

    def log_unused(self) -> None:
        """Log the options that have no effect here, in one line."""
        unused = {**self.job.unused, **_of_services(self.table, self.job)}
        if unused:
            names = "; ".join(f"{name}: {why}" for name, why in sorted(unused.items()))
            log.warning("%s: options without effect on this write: %s", self.table.location, names)

    def write(
        self, rows: Any, *, extra: Mapping[str, str] | None = None, precondition: Precondition | None = None
    ) -> Outcome:
        """Write the rows in one commit; `extra` is added to its metadata."""
        job = self.job
        call: WriteCall = {
            "options": {key: value for key, value in job.options.items() if not service_of(key)},
            "commit_metadata": {**job.commit_metadata, **(extra or {})},
            "precondition": precondition,
        }
        if job.operation == DELETE_PARTITION:
            return self.table.delete_partitions(job.partitions, commit_metadata=call["commit_metadata"])
        verb = getattr(self.table, job.operation)
        outcome: Outcome = verb(rows, **call)
        return outcome


def open_target(
    location: str, job: WriteJob, mode: SaveMode, schema: pa.Schema | None = None
) -> JobTarget | NothingToDo:
    """Open the table of a job, or create it with the columns of `schema`.

    Returns NothingToDo if the mode is `ignore` and the table exists.

    Raises:
        UserError: The mode does not allow the write, the table is missing and the job does not say how to create it,
            or the job contradicts the properties of the table.
    """
    storage = open_storage(location, dict(job.storage))
    exists = read_properties(storage) is not None
    if job.operation in (DELETE, DELETE_PARTITION):
        if mode is not SaveMode.APPEND:
            raise UserError(f"operation {job.operation} needs mode 'append', not {mode.value!r}", argument="mode")
        if not exists:
            raise UserError(f"operation {job.operation}: there is no table at {location}", location=location)
    if exists and mode is SaveMode.ERROR:
        raise UserError(
            f"there is a table at {location} already; write to it with mode 'append' or 'overwrite'", location=location
        )
    if exists and mode is SaveMode.IGNORE:
        reason = f"there is a table at {location} already, and the mode is 'ignore'"
        return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=reason)
    if not exists:
        _create(location, job, schema)
    env = Env(storage=storage)
    table = Table.open(location, options=job.options, allowed_functions=job.functions, env=env)
    _require_same(table, job)
    if not table.config.keys.record_key_fields and not job.declares_operation:
        # As in Hudi: rows with generated keys are inserted.
        job = replace(job, operation=INSERT)
    if job.operation == DELETE_PARTITION and not job.partitions:
        raise UserError(f"operation {DELETE_PARTITION} needs {PARTITIONS_TO_DELETE}", argument=PARTITIONS_TO_DELETE)
    if mode is SaveMode.OVERWRITE and exists:
        job = _overwriting(job)
    return JobTarget(table=table, job=job)


def _create(location: str, job: WriteJob, schema: pa.Schema | None) -> None:
    if not job.name:
        raise UserError(f"there is no table at {location}, and a new one needs {TABLE_NAME}", option=TABLE_NAME)
    if not job.record_key and job.declares_operation and job.operation == UPSERT:
        raise UserError(
            f"there is no table at {location}, and a new one for the operation {UPSERT} needs {RECORD_KEY}",
            option=RECORD_KEY,
        )
    Table.create(
        location,
        name=job.name,
        record_key=job.record_key,
        partition_by=job.partition_by or (),
        schema=None if schema is None else pa.schema([c for c in schema if c.name not in META_COLUMNS]),
        table_type=job.table_type or "COPY_ON_WRITE",
        options={**job.creation, **job.options},
        storage_options=dict(job.storage),
        # Two jobs may create the table at the same time; `_require_same` compares it with this job.
        exist_ok=True,
        **creation_arguments(job),
    )


def _of_services(table: Table, job: WriteJob) -> dict[str, str]:
    """Return the options of table services, which a write does not run, unless the table stores the same values."""
    stored = stored_options(table.config)
    return {
        key: f"the service {service} runs on its own, with the options that the table or its spec stores"
        for key, value in job.options.items()
        if (service := service_of(key)) and stored.get(key) != value
    }


_WITH_TIMES = (KeyGeneratorType.TIMESTAMP, KeyGeneratorType.CUSTOM)


def _overwriting(job: WriteJob) -> WriteJob:
    """Return the job that replaces all rows; the rows of an upsert are combined as without a table."""
    options = {**job.options, _COMBINE: "true"} if job.operation == UPSERT else job.options
    return replace(job, operation=INSERT_OVERWRITE_TABLE, options=options)


def _require_same(table: Table, job: WriteJob) -> None:
    """Raise UserError if an option of the job differs from the property of the table that it set at the creation."""
    config = table.config
    declared = tuple(name.partition(":")[0] for name in job.partition_by or ())
    pairs = [
        (TABLE_NAME, job.name, config.name),
        (TABLE_TYPE, _full_type(job.table_type), config.table_type),
        (RECORD_KEY, ",".join(job.record_key), ",".join(config.keys.record_key_fields)),
    ]
    if job.key_generator is not None:
        pairs.append((GENERATOR, job.key_generator.value, config.keys.generator.value))
    if job.partition_by is not None:
        pairs.append(
            (PARTITION_PATH, ",".join(declared) or "(none)", ",".join(config.keys.partition_fields) or "(none)")
        )
    lost = unread_by(declared_readers(job.creation), config.layout)
    if lost:
        raise UserError(
            f"option {READERS}: {', '.join(lost)} cannot read the table at {table.location}, which has version "
            f"{config.version}. Remove the option, write to another location, or change the version of the table",
            option=READERS,
        )
    of_creation = {key: text for key, text in job.creation.items() if key != READERS}
    pairs += [(key, text.strip().lower(), _created_with(config, key)) for key, text in of_creation.items()]
    for option, wanted, stored in pairs:
        if wanted and wanted != stored:
            raise UserError(
                f"option {option}={wanted} contradicts the table at {table.location}, which was created with "
                f"{stored}. Remove the option, or write to another location",
                option=option,
                stored=stored,
            )
    _require_same_rule(table, job)


def _created_with(config: TableConfig, key: str) -> str:
    """Return the value of a creation option with which the table was created, or would be without the option."""
    if key == VERSION:
        return str(config.version)
    default = "no change logs" if key == CDC_MODE else CREATE_DEFAULTS[key]
    return config.raw.get(key, default).strip().lower()


def _full_type(text: str) -> str:
    return {"COW": "COPY_ON_WRITE", "MOR": "MERGE_ON_READ"}.get(text, text)


def creation_arguments(job: WriteJob) -> dict[str, Any]:
    """Return the arguments of `Table.create` for keys and merging; None for those that the job does not declare."""
    return {
        "key_generator": None if job.key_generator is None else job.key_generator.value,
        "timestamp": job.timestamp if job.key_generator in _WITH_TIMES else None,
        "ordering": job.ordering or None,
        "merge_mode": job.merge_mode or None,
        "partial_update": job.partial_update or None,
        "delete_field": job.delete_field or None,
        "delete_marker": job.delete_marker or None,
        "payload_class": job.payload or None,
    }


def _require_same_rule(table: Table, job: WriteJob) -> None:
    """Raise UserError if the job merges records by another rule than the table.

    Raises UnsupportedError for a payload class that cannot be translated.
    """
    rule, config = table.config.merge_rule, table.config
    ordering = rule.ordering or config.ordering_fields
    pairs: list[tuple[str, object, object]] = [
        (MERGE_MODE, job.merge_mode, config.merge_mode.value),
        (PARTIAL_UPDATE, job.partial_update, rule.partial.value),
        (DELETE_FIELD, job.delete_field, rule.delete_field),
        (DELETE_MARKER, job.delete_marker, rule.delete_marker),
    ]
    wanted_ordering = job.ordering
    if job.payload:
        wanted = payload_rule(job.payload, job.ordering, config.layout)
        wanted_ordering = wanted.ordering
        settings = (wanted.mode, wanted.partial, wanted.delete_field or rule.delete_field)
        stored = (rule.mode, rule.partial, rule.delete_field)
        if rule.merger or settings != stored:
            raise UserError(
                f"option {PAYLOAD}={job.payload} contradicts the table at {table.location}, whose records are merged "
                f"by {rule.foreign or rule.merger or rule.mode}. Remove the option, or write to another location",
                option=PAYLOAD,
            )
        if job.merge_mode in ("", MergeMode.CUSTOM):
            pairs = pairs[1:]
    pairs.append((ORDERING, ",".join(wanted_ordering), ",".join(ordering)))
    for option, declared, stored_value in pairs:
        if declared and declared != stored_value:
            raise UserError(
                f"option {option}={declared} contradicts the table at {table.location}, which was created with "
                f"{stored_value or 'none'}. Remove the option, or write to another location",
                option=option,
                stored=str(stored_value),
            )
