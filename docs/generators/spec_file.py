"""The page of the table spec: every key of every section."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from docs.generators.markdown import code, page, table
from lakehouse.spec.options.policies import POLICIES, Policies
from lakehouse.spec.sources.ingest import DEDUPLICATE_KEYS, SOURCE_SPECS
from lakehouse.spec.sources.ingest_keys import INGEST_KEYS
from lakehouse.spec.sources.transform import TRANSFORM_KEYS
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.table.publish_keys import PUBLISH_KEYS, SERVICE_KEYS
from lakehouse.spec.table.services import SERVICE_SPECS, ServiceSpec
from lakehouse.spec.table.table_keys import INDEX_KEYS, PARTITION_KEYS, TABLE_KEYS

_INTRO = """\
One YAML file declares a table: what it is, where its rows come from, and how it is serviced and published. An unknown
key is an error with file, line and the nearest known key. [Ingestion](../ingestion.md),
[table services](../services.md) and [publication](../publication.md) show whole files. Durations are `90s`, `5m`, `2h`
or `1d`; a list with one column may be the column itself."""
_SERVICES = """\
A service has its name, the keys below, and the settings of its [options](options.md) by their names or by their
full keys: `clean: {commits_retained: 10}`. `services.publish` has keys of its own."""

#: The sections of the page: title -> the sentence under it and its keys.
SECTIONS: dict[str, tuple[str, tuple[SpecKey, ...]]] = {
    "Table": ("The keys of the file.", TABLE_KEYS),
    "partition_by": (
        "Format of a column: `partition_by: {day: {type: TIMESTAMP, output_format: yyyy/MM}}`.",
        PARTITION_KEYS,
    ),
    "index": ("Index with settings: `index: {type: bucket, buckets: 8}`.", INDEX_KEYS),
    "ingest": ("What all sources have.", INGEST_KEYS),
    **{
        f"ingest, source: {kind}": (f"Keys of the source `{kind}` in `ingest`.", source.KEYS)
        for kind, source in SOURCE_SPECS.items()
    },
    "ingest.transform": (
        "Rows by SQL or by a Python function, for every source: `transform: {sql: SELECT ... FROM batch}`.",
        TRANSFORM_KEYS,
    ),
    "ingest.deduplicate": (
        "Events that were delivered more than once: `deduplicate: {within: 1d, time: created_at}`.",
        DEDUPLICATE_KEYS,
    ),
    "services": (_SERVICES, SERVICE_KEYS),
    "services.publish": ("Partitions of a Hive Metastore.", PUBLISH_KEYS),
}


_SCHEDULING = {key.name for key in SERVICE_KEYS}


def spec_file_page() -> str:
    """Return the page with all keys."""
    parts = [_INTRO]
    for title, (text, keys) in SECTIONS.items():
        parts += [f"## {title}", text, _keys(keys)]
        if title == "services":
            parts += [part for service in SERVICE_SPECS for part in _service(service)]
    return page("Table spec", "lakehouse/spec", *parts)


def _keys(keys: Iterable[SpecKey]) -> str:
    rows = [
        (code(key.name), key.type, "required" if key.required else code(key.default), _meaning(key), _example(key))
        for key in keys
    ]
    return table(("key", "type", "default", "meaning", "example"), rows)


def _meaning(key: SpecKey) -> str:
    return f"{key.text} One of {', '.join(key.choices)}." if key.choices else key.text


def _example(key: SpecKey) -> str:
    return code(f"{key.name}: {key.example}") + (f" with {code(_inner(key.needs))}" if key.needs else "")


def _inner(mapping: str) -> str:
    """Return a YAML mapping without its own braces."""
    return mapping[1:-1] if mapping.startswith("{") else mapping


def _service(service: ServiceSpec) -> tuple[str, str]:
    defaults = getattr(Policies(), service.options)
    rows = [
        (
            # A key of the scheduler precedes a field of the same name, which has its option key only.
            code(field.metadata["key"] if field.name in _SCHEDULING else field.name),
            code(field.metadata["key"]),
            code(_text(getattr(defaults, field.name))),
            field.metadata["text"],
        )
        for field in fields(POLICIES[service.options])
    ]
    return f"### services.{service.name}", table(("setting", "option", "default", "meaning"), rows)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
