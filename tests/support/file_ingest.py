"""Build `ingest` sections of specs with a file source from flat settings."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from lakehouse.spec.sources.file_source import FileSourceSpec
from lakehouse.spec.sources.ingest import IngestSpec

_OF_FILES = {declared.name for declared in fields(FileSourceSpec)}


def file_ingest(**settings: Any) -> IngestSpec:
    """Return a section with these settings, each of which is a field of `FileSourceSpec` or `IngestSpec`."""
    source, common = _divided(settings)
    return IngestSpec(source=FileSourceSpec(**source), **common)


def changed_ingest(ingest: IngestSpec | None, **settings: Any) -> IngestSpec:
    """Return the section with these settings changed."""
    assert ingest is not None, "the spec has a source"
    assert isinstance(ingest.source, FileSourceSpec), "the source is files"
    source, common = _divided(settings)
    return replace(ingest, source=replace(ingest.source, **source), **common)


def files_of(ingest: IngestSpec | None) -> FileSourceSpec:
    """Return the section's file source."""
    assert ingest is not None, "the spec has a source"
    assert isinstance(ingest.source, FileSourceSpec), "the source is files"
    return ingest.source


def _divided(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    source = {name: value for name, value in settings.items() if name in _OF_FILES}
    return source, {name: value for name, value in settings.items() if name not in _OF_FILES}
