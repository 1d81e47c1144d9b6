"""Inputs: several ingestions that fill one table, each with its own source, schedule, checkpoint and columns.

    ingest:
      inputs:
        riders: {path: landing/riders, schema: {trip_id: string, rider_at: long, rider: string}}
        payments: {source: kafka, topic: payments, schema: {...}}

An input supports the keys of `ingest`, and its own `schema`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lakehouse.spec.sources.ingest import IngestSpec, ingest_mapping, parse_ingest
from lakehouse.spec.yaml_section import Section

INPUTS = "inputs"
_SCHEMA = "schema"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input of a table: its ingestion, and the columns of its rows with their Spark SQL types."""

    ingest: IngestSpec
    schema: Mapping[str, str] = field(default_factory=dict)


def parse_inputs(section: Section) -> dict[str, InputSpec]:
    """Return the inputs of the section `ingest`; raise UserError with file and line."""
    section.only((INPUTS,))
    inputs = section.section(INPUTS, INPUTS)
    if inputs is None or not inputs.lines:
        raise section.error("inputs: expected the name of an input, and its source.", INPUTS)
    return {name: _input(inputs, name) for name in inputs.lines}


def _input(inputs: Section, name: str) -> InputSpec:
    if not _NAME.fullmatch(name):
        raise inputs.error(f"inputs: {name!r} is not a name: up to 60 letters, digits, '_' and '-'.", name)
    detail = inputs.section(name, f"input {name!r}")
    if detail is None:
        raise inputs.error(f"inputs: {name!r} has no source.", name)
    keys = {key: node for key, node in detail.nodes.items() if key != _SCHEMA}
    lines = {key: line for key, line in detail.lines.items() if key != _SCHEMA}
    ingest = parse_ingest(replace(detail, nodes=keys, lines=lines))
    if ingest.database is not None:
        raise detail.error(
            "source: the rows of a database have the order of its log and no ordering column, so it cannot be an "
            "input. Ingest it into a table of its own, and read that table with 'source: table'.",
            "source",
        )
    return InputSpec(ingest=ingest, schema=detail.mapping(_SCHEMA))


def inputs_mapping(inputs: Mapping[str, InputSpec]) -> dict[str, Any]:
    """Return the section `ingest` as in the YAML file."""
    return {
        INPUTS: {
            name: {**ingest_mapping(one.ingest), **({_SCHEMA: dict(one.schema)} if one.schema else {})}
            for name, one in inputs.items()
        }
    }
