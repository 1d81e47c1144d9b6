"""Inputs of a table spec: their ingestions, their text, and errors with file and line."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from lakehouse.errors import UserError
from lakehouse.spec.command_check import check_declared
from lakehouse.spec.job_command import IngestCommand, command_of
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

TEXT = """\
table: trips
location: lake/trips
record_key: trip_id
type: MERGE_ON_READ
index: {type: bucket, buckets: 2}
column_groups: {rider_at: [rider], paid_at: [amount]}
ingest:
  inputs:
    riders: {path: landing/riders, schedule: "@hourly", schema: {trip_id: string, rider_at: long, rider: string}}
    payments: {path: landing/payments, on_delete: clear, stream: true}
"""


def parse(text: str = TEXT) -> TableSpec:
    return parse_spec(text, source="trips.yaml")


def test_each_input_is_an_ingestion_with_its_own_columns() -> None:
    spec = parse()
    riders, payments = spec.ingestions
    assert (spec.ingest, riders.ingestion_name, payments.ingestion_name) == (None, "trips.riders", "trips.payments")
    assert riders.ingest is not None and payments.ingest is not None
    assert (riders.ingest.schedule, tuple(riders.schema)) == ("@hourly", ("trip_id", "rider_at", "rider"))
    assert (payments.ingest.on_delete, payments.schema) == ("clear", {})
    assert riders.to_mapping() == spec.to_mapping()
    assert parse(yaml.safe_dump(spec.to_mapping())) == spec


def test_spec_of_an_input_has_the_document_of_its_file() -> None:
    spec = parse(f"{TEXT}schema: {{trip_id: string, paid_at: long, amount: double}}\n")
    riders, payments = spec.ingestions
    assert (tuple(riders.schema), payments.schema) == (("trip_id", "rider_at", "rider"), spec.schema)
    for one in (riders, payments, riders.of_input("payments"), payments.of_input("riders")):
        assert one.to_mapping() == spec.to_mapping()
    assert riders.of_input("payments").schema == spec.schema


def test_spec_without_inputs_is_its_own_ingestion() -> None:
    spec = parse("table: t\nlocation: l\nrecord_key: k\ningest: {path: landing}\n")
    assert spec.ingestions == (spec,)
    assert spec.of_input(None) is spec
    assert parse("table: t\nlocation: l\nrecord_key: k\n").ingestions == ()


@pytest.mark.parametrize(
    ("table_type", "index", "mode"),
    [
        ("MERGE_ON_READ", "{type: bucket, buckets: 2}", "NON_BLOCKING_CONCURRENCY_CONTROL"),
        ("COPY_ON_WRITE", "{type: bucket, buckets: 2}", "OPTIMISTIC_CONCURRENCY_CONTROL"),
        ("MERGE_ON_READ", "simple", "OPTIMISTIC_CONCURRENCY_CONTROL"),
    ],
)
def test_inputs_imply_a_concurrency_mode_for_several_writers(table_type: str, index: str, mode: str) -> None:
    text = TEXT.replace("MERGE_ON_READ", table_type).replace("{type: bucket, buckets: 2}", index)
    for one in (parse(text), *parse(text).ingestions):
        assert one.write_options()["hoodie.write.concurrency.mode"] == mode
    own = parse(f"{text}options: {{hoodie.write.concurrency.mode: SINGLE_WRITER}}\n")
    assert own.write_options()["hoodie.write.concurrency.mode"] == "SINGLE_WRITER"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("inputs:\n", "path: x\n  inputs:\n", "trips.yaml:8: .*'path'"),
        ("riders: {path", "'a b': {path", "trips.yaml:9: inputs: 'a b' is not a name"),
        ("path: landing/riders", "pth: landing/riders", "trips.yaml:9: .*'pth'.* Did you mean 'path'"),
        ("schema: {trip_id: string, ", "schema: {", "column 'trip_id' is not in 'schema'"),
        ("stream: true", "stream: true, schedule: '@daily'", "schedule: a run of a stream follows the one before"),
        ("stream: true", "stream: {every: 0s}", "every: must be longer than 0 seconds"),
        ("stream: true", "stream: {watch: never}", "watch: .never. is not one of blocking, deferred"),
    ],
)
def test_wrong_inputs_are_refused_with_their_line(old: str, new: str, problem: str) -> None:
    assert old in TEXT
    with pytest.raises(UserError, match=problem):
        parse(TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        (TEXT, None, "choose one of riders, payments with --input NAME"),
        (TEXT, "rider", "no such input. Did you mean 'riders'"),
        ("table: t\nlocation: l\nrecord_key: k\ningest: {path: landing}\n", "x", "has no inputs"),
    ],
)
def test_command_with_a_wrong_input_is_refused(text: str, name: str | None, problem: str) -> None:
    command = IngestCommand(table="trips.yaml", input=name)
    with pytest.raises(UserError, match=problem):
        check_declared(parse(text), command, {})


def test_input_is_for_ingestions_only() -> None:
    with pytest.raises(UserError, match="--input: clean works on the whole table"):
        command_of("clean", "run", table="t", input="riders")


@pytest.mark.parametrize(
    ("action", "values", "problem"),
    [
        ("run", {"every": "30s"}, "--every: `ingest run` runs once; use `ingest stream`"),
        ("stream", {"every": "0s"}, "--every 0s: must be longer than 0 seconds"),
        ("stream", {"run_for": "soon"}, "--run-for='soon' is not a duration"),
        ("stream", {"full_refresh": True}, "--full-refresh: a stream continues from the checkpoint"),
        ("stream", {"resnapshot": ("shop.orders",)}, "--resnapshot: a stream continues from the checkpoint"),
        ("stream", {"interval_start": "2026-01-01", "interval_end": "2026-01-02"}, "--interval-start: a stream"),
    ],
)
def test_flags_that_contradict_a_stream_are_refused(action: str, values: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        command_of("ingest", action, table="t.yaml", **values)
