"""Parse the options of a Hudi job that writes a DataFrame: `hoodie.datasource.write.*` and others become a `WriteJob`.

A job moves over by changing the format's name, so the options keep Hudi's names and meanings. An option is never
ignored silently: it is honoured, or `unused` lists it with the reason, or it raises UserError with the way out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.errors import SettingError, UserError, nearest
from lakehouse.model.keys import KeyGeneratorType, TimestampFormat
from lakehouse.model.merge import BY_PAYLOAD, STRATEGIES, MergeMode
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.options.declarations import declared_keys
from lakehouse.spec.options.hudi.catalogue import Support, catalogue
from lakehouse.spec.options.hudi.job_names import (
    DELETE_FIELD,
    DELETE_MARKER,
    GENERATOR,
    GENERATOR_CLASS,
    MERGE_MODE,
    ORDERING,
    PARTIAL_UPDATE,
    PARTITION_PATH,
    PAYLOAD,
    RECORD_KEY,
    SAME,
    STRATEGY,
    TABLE_NAME,
    TABLE_TYPE,
)
from lakehouse.spec.options.parser import parse_options

UPSERT, INSERT, BULK_INSERT, DELETE = "upsert", "insert", "bulk_insert", "delete"
INSERT_OVERWRITE, INSERT_OVERWRITE_TABLE = "insert_overwrite", "insert_overwrite_table"
DELETE_PARTITION = "delete_partition"
OPERATIONS = (UPSERT, INSERT, BULK_INSERT, DELETE, INSERT_OVERWRITE, INSERT_OVERWRITE_TABLE, DELETE_PARTITION)
OPERATION = "hoodie.datasource.write.operation"
PARTITIONS_TO_DELETE = "hoodie.datasource.write.partitions.to.delete"
METADATA_PREFIX = "hoodie.datasource.write.commitmeta.key.prefix"
STREAM_IDENTIFIER = "hoodie.datasource.write.streaming.checkpoint.identifier"
LOCAL_LIMIT = "lakehouse.write.local.max.bytes"
ALLOWED_FUNCTIONS = "allowed_functions"
CHECKPOINT = "checkpointlocation"
PATH = "path"
_LOCAL_LIMIT_BYTES = 4 << 30
_OF_JOB = frozenset(
    {
        *SAME.values(),
        OPERATION,
        RECORD_KEY,
        PARTIAL_UPDATE,
        PARTITIONS_TO_DELETE,
        METADATA_PREFIX,
        STREAM_IDENTIFIER,
        LOCAL_LIMIT,
        ALLOWED_FUNCTIONS,
    }
)
_TIMEBASED = ("hoodie.keygen.timebased.", "hoodie.deltastreamer.keygen.timebased.", "hoodie.streamer.keygen.timebased.")
_STORAGE_PREFIXES = ("fs.", "aws_", "google_", "azure_", "allow_http", "max_attempts")
#: Options that Spark itself adds or reads.
_OF_SPARK = frozenset({PATH, CHECKPOINT, "path", "owner", "location", "provider"})
_GENERATORS = {
    "simple": KeyGeneratorType.SIMPLE,
    "complex": KeyGeneratorType.COMPLEX,
    "timestampbased": KeyGeneratorType.TIMESTAMP,
    "timestamp": KeyGeneratorType.TIMESTAMP,
    "custom": KeyGeneratorType.CUSTOM,
    "nonpartitioned": KeyGeneratorType.NON_PARTITION,
    "non_partition": KeyGeneratorType.NON_PARTITION,
}
#: The generator of deletes that search all partitions; deletes without partition columns always do.
_OF_DELETES = ("globaldelete", "global_delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteJob:
    """The parsed options of a job; empty values were not given.

    Attributes:
        operation: One of `OPERATIONS`.
        declares_operation: Whether an option sets the operation. Without it a table without record key gets inserts.
        name: The name of the table.
        table_type: COPY_ON_WRITE or MERGE_ON_READ.
        record_key: The columns of the record key.
        partition_by: The columns of the partition path; None if not given, empty for a table without partitions.
        ordering: The ordering columns.
        key_generator: The key generator.
        timestamp: The formats of TIMESTAMP partition columns.
        payload: The payload class.
        merge_mode: The record merge mode.
        partial_update: The partial update mode.
        delete_field: The column that marks deletes by `delete_marker`.
        delete_marker: The value that marks a delete.
        creation: Options that are fixed when the table is created.
        options: Options of the write.
        storage: Options of the storage.
        partitions: The partitions that `delete_partition` deletes.
        commit_metadata: Extra metadata of the commit: options with the prefix `_` or the declared one.
        functions: Functions that the table may name.
        identifier: The name of this sink, if a stream writes one table several times.
        local_limit: Maximum bytes of staged rows that the driver's Python process commits.
        unused: Options without effect here, each with the reason.
    """

    operation: str = UPSERT
    declares_operation: bool = False
    name: str = ""
    table_type: str = ""
    record_key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] | None = None
    ordering: tuple[str, ...] = ()
    key_generator: KeyGeneratorType | None = None
    timestamp: TimestampFormat | None = None
    payload: str = ""
    merge_mode: str = ""
    partial_update: str = ""
    delete_field: str = ""
    delete_marker: str = ""
    creation: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    storage: Mapping[str, str] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()
    commit_metadata: Mapping[str, str] = field(default_factory=dict)
    functions: tuple[str, ...] = ()
    identifier: str = ""
    local_limit: int = _LOCAL_LIMIT_BYTES
    unused: Mapping[str, str] = field(default_factory=dict)


def parse_write_job(options: Mapping[str, str]) -> WriteJob:
    """Return the job that these options describe; keys are compared without regard to case.

    Raises:
        SettingError: An option is unknown, its value cannot be honoured, or two options contradict each other.
    """
    texts = _canonical(options)
    prefix = texts.get(METADATA_PREFIX, "_")
    of_job, of_table, of_write, unused = dict[str, str](), dict[str, str](), dict[str, str](), dict[str, str]()
    storage, timebased, metadata = dict[str, str](), dict[str, str](), dict[str, str]()
    for key, value in texts.items():
        if key in _OF_JOB or key in SAME:
            of_job[key] = value
        elif key.startswith(_TIMEBASED):
            timebased[next(key[len(start) :] for start in _TIMEBASED if key.startswith(start))] = value
        elif key in CREATE_OPTIONS:
            of_table[key] = value
        elif key in declared_keys():
            of_write[key] = value
        elif key.lower().startswith(_STORAGE_PREFIXES):
            storage[key] = value
        elif key in catalogue():
            reason = _reason(key, value)
            if reason:
                unused[key] = reason
        elif prefix and key.startswith(prefix):
            metadata[key] = value
        elif key.lower() not in _OF_SPARK:
            raise SettingError(
                f"unknown option {key!r} of a write.{nearest(key, _names())} The page 'Options of Hudi jobs' lists all",
                setting=key,
            )
    parse_options(of_write)
    fields = _job_fields(of_job, timebased)
    return WriteJob(
        creation=of_table, options=of_write, storage=storage, commit_metadata=metadata, unused=unused, **fields
    )


def _canonical(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options under the names as declared: Spark passes names in lower case."""
    declared = {name.lower(): name for name in _names()}
    return {declared.get(key.lower(), key): str(value) for key, value in options.items()}


def _names() -> Iterator[str]:
    yield from (*_OF_JOB, *SAME, *CREATE_OPTIONS, *declared_keys(), *catalogue())


def _reason(key: str, value: str) -> str:
    """Return why an option has no effect, or an empty string if its value changes nothing.

    Raises SettingError if the value would change the table and cannot be honoured.
    """
    entry = catalogue()[key]
    if entry.accepts(value):
        return ""
    if entry.support is Support.REFUSED:
        raise SettingError(f"option {key}={value!r} is not supported: {entry.text}", setting=key)
    return entry.text or "an option of reads"


def _job_fields(of_job: Mapping[str, str], timebased: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, tuple[str, str]] = {}
    for key, value in of_job.items():
        text, name = value.strip(), SAME.get(key, key)
        if name == PAYLOAD and not text:
            continue
        first = values.setdefault(name, (key, text))
        if first[1] != text:
            raise SettingError(
                f"options {first[0]}={first[1]!r} and {key}={text!r} contradict each other; they have the same "
                "meaning, so set one",
                setting=key,
                related=(first[0],),
            )
    texts = {name: text for name, (_, text) in values.items()}
    partition_by = _columns(texts[PARTITION_PATH]) if PARTITION_PATH in texts else None
    generator = _generator(texts)
    if generator is KeyGeneratorType.NON_PARTITION:
        # Hudi ignores the partition columns with this generator.
        partition_by = ()
    return {
        "operation": _choice(texts, OPERATION, UPSERT, OPERATIONS),
        "declares_operation": OPERATION in texts,
        "name": texts.get(TABLE_NAME, ""),
        "table_type": texts.get(TABLE_TYPE, "").upper(),
        "record_key": _columns(texts.get(RECORD_KEY, "")),
        "partition_by": partition_by,
        "ordering": _columns(texts.get(ORDERING, "")),
        "key_generator": generator,
        "timestamp": _timestamp(timebased),
        "payload": texts.get(PAYLOAD, ""),
        "merge_mode": _merge_mode(texts),
        "partial_update": texts.get(PARTIAL_UPDATE, "").upper(),
        "delete_field": texts.get(DELETE_FIELD, ""),
        "delete_marker": texts.get(DELETE_MARKER, ""),
        "partitions": _columns(texts.get(PARTITIONS_TO_DELETE, "")),
        "functions": _columns(texts.get(ALLOWED_FUNCTIONS, "")),
        "identifier": texts.get(STREAM_IDENTIFIER, ""),
        "local_limit": _bytes(texts.get(LOCAL_LIMIT, str(_LOCAL_LIMIT_BYTES))),
    }


def _merge_mode(texts: Mapping[str, str]) -> str:
    """Return the merge mode that is declared, or that a strategy id stands for."""
    mode, strategy = texts.get(MERGE_MODE, "").upper(), texts.get(STRATEGY, "").lower()
    if not strategy or strategy == BY_PAYLOAD:
        return "" if mode == MergeMode.CUSTOM and texts.get(PAYLOAD) else mode
    implied = STRATEGIES.get(strategy)
    if implied is None or mode not in ("", implied):
        raise SettingError(
            f"option {STRATEGY}={strategy!r} is a merger of the JVM that cannot run here, or contradicts {MERGE_MODE}. "
            f"Set {MERGE_MODE}, or write a merger in Python: Table.create(merger=...)",
            setting=STRATEGY,
            related=(MERGE_MODE,),
        )
    return implied.value


def _choice(texts: Mapping[str, str], key: str, default: str, choices: tuple[str, ...]) -> str:
    text = texts.get(key, default).lower()
    if text not in choices:
        raise SettingError(
            f"option {key}={texts[key]!r} is not one of {', '.join(choices)}.{nearest(text, choices)}", setting=key
        )
    return text


def _columns(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _bytes(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise SettingError(f"option {LOCAL_LIMIT}={text!r}: expected a number of bytes", setting=LOCAL_LIMIT)
    return int(text)


def _generator(texts: Mapping[str, str]) -> KeyGeneratorType | None:
    types = {}
    for key in (GENERATOR_CLASS, GENERATOR):
        if not texts.get(key):
            continue
        name = texts[key].rpartition(".")[2].lower()
        plain = name.removesuffix("keygenerator").removesuffix("_avro").removesuffix("avro")
        if plain in _OF_DELETES:
            continue
        if plain not in _GENERATORS:
            raise SettingError(
                f"option {key}={texts[key]!r} is a key generator that cannot run here. Compute the key or the "
                f"partition as a column of the DataFrame, and use {RECORD_KEY} and {PARTITION_PATH}; the generators "
                f"here are {', '.join(KeyGeneratorType)}",
                setting=key,
            )
        types[key] = _GENERATORS[plain]
    if len({*types.values()}) > 1:
        raise SettingError(
            f"options {GENERATOR_CLASS} and {GENERATOR} contradict each other; set one",
            setting=GENERATOR_CLASS,
            related=(GENERATOR,),
        )
    return next(iter(types.values()), None)


def _timestamp(texts: Mapping[str, str]) -> TimestampFormat | None:
    if not texts:
        return None
    names = {
        "timestamp.type",
        "input.dateformat",
        "input.dateformat.list.delimiter.regex",
        "output.dateformat",
        "timezone",
        "input.timezone",
        "output.timezone",
        "timestamp.scalar.time.unit",
    }
    for name in texts:
        if name not in names:
            raise SettingError(
                f"unknown option {_TIMEBASED[0]}{name}.{nearest(name, names)}", setting=f"{_TIMEBASED[0]}{name}"
            )
    zone, formats = texts.get("timezone", ""), texts.get("input.dateformat", "")
    delimiter = texts.get("input.dateformat.list.delimiter.regex", "") or ","
    kind = texts.get("timestamp.type") or ("DATE_STRING" if formats else "EPOCHMILLISECONDS")
    if "output.dateformat" not in texts:
        raise UserError(f"the timestamp key generator needs {_TIMEBASED[0]}output.dateformat, such as yyyy-MM-dd")
    return TimestampFormat(
        type=kind.upper().replace("UNIX_TIMESTAMP", "UNIX_TIMESTAMP"),
        scalar_unit=texts.get("timestamp.scalar.time.unit", "seconds").lower(),
        input_formats=tuple(part.strip() for part in formats.split(delimiter) if part.strip()),
        input_timezone=texts.get("input.timezone", zone),
        output_format=texts["output.dateformat"],
        output_timezone=texts.get("output.timezone", zone) or "UTC",
    )
