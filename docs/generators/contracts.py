"""The page of the documents that processes exchange: reports, asset events, decisions and results of commands."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Iterator

from docs.generators.markdown import attributes, code, default_text, page, prose, table
from lakehouse.model.drift import ColumnDrift
from lakehouse.model.ttl import TtlRule
from lakehouse.spec import contracts
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import (
    IngestReport,
    JobError,
    JobOutcome,
    PublicationReport,
    ServiceReport,
    WriteOutcome,
)
from lakehouse.spec.contracts.publication import PartitionEvent, PublishResult, SensorEvent
from lakehouse.spec.contracts.table_event import TableEvent

_INTRO = """\
Processes exchange JSON documents: the keys are the names below, enums are their values, and `version` is the version of
the document. A reader ignores unknown fields and refuses a newer version. The result of a command with `--output json`,
the XCom value of a task and the `extra` of an asset event are such documents."""
#: Classes that no process writes: their fields are those of the documents that extend them.
_BASES = (Document, JobOutcome, WriteOutcome)
#: The documents that users meet first: XCom values and asset events.
FIRST = (
    IngestReport,
    ServiceReport,
    PublicationReport,
    JobError,
    ColumnDrift,
    TableEvent,
    PublishResult,
    PartitionEvent,
    SensorEvent,
)


def contracts_page() -> str:
    """Return the page with all documents and their fields."""
    parts = [_INTRO, "## XCom values and asset events"]
    for kind in FIRST:
        parts += _document(kind)
    parts.append("## Results of commands")
    for kind in documents():
        if kind not in FIRST:
            parts += _document(kind)
    return page("Reports, events and results", "lakehouse/spec/contracts", *parts)


def documents() -> Iterator[type]:
    """Yield every dataclass of the contracts, by name."""
    found: dict[str, type] = {"ColumnDrift": ColumnDrift, "TtlRule": TtlRule}
    for module in pkgutil.iter_modules(contracts.__path__, f"{contracts.__name__}."):
        for name, kind in inspect.getmembers(importlib.import_module(module.name), dataclasses.is_dataclass):
            if kind.__module__ == module.name and kind not in _BASES:
                found[name] = kind
    yield from (found[name] for name in sorted(found))


def field_texts(kind: type) -> dict[str, str]:
    """Return the meaning of each field that has one; an event shares those of the report."""
    texts = attributes(kind)
    return {**attributes(IngestReport), **texts} if kind is TableEvent else texts


def _document(kind: type) -> Iterator[str]:
    yield f"### {kind.__name__}"
    text = prose(kind.__doc__)
    if text:
        yield "\n".join(line if not line.startswith(" ") else f"    {line}" for line in text.splitlines())
    texts = field_texts(kind)
    rows = []
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default = "required" if required else default_text(_default(field))
        rows.append((code(field.name), code(str(field.type)), default, texts.get(field.name, "")))
    yield table(("field", "type", "default", "meaning"), rows)


def _default(field: dataclasses.Field[object]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
