"""Every lock provider declared in a spec file, for the command line and for writers."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.cli.table import open_table
from lakehouse.core.timeline.lock_compatibility import SHARED_LOCK
from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.table.table_spec import load_spec
from tests.support.locks import Place, kinds, options_of

PROVIDER = "hoodie.write.lock.provider"
OPTIMISTIC = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
KINDS = (
    "in_process",
    "filesystem-local",
    "storage-local",
    "sqlalchemy-sqlite",
    "sqlalchemy-postgresql",
    "zookeeper",
    "hivemetastore",
)


def spec_of(place: Place, tmp_path: Path, **others: str) -> Path:
    """Write a spec that declares the lock of a place."""
    declared = options_of(place.policy.lock)
    mode = {} if place.policy.lock.provider == "in_process" else OPTIMISTIC
    options = {**mode, PROVIDER: place.policy.lock.provider, **declared, **others}
    lines = [
        "table: sales.orders",
        f"location: {place.storage.root}",
        "record_key: id",
        "ordering: ts",
        "options:",
        *(f"  {key}: {json.dumps(value)}" for key, value in options.items()),
    ]
    path = tmp_path / "orders.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("place", kinds(KINDS), indirect=True)
def test_lock_provider_is_declared_in_a_spec_and_taken_by_the_command_line(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = str(spec_of(place, tmp_path, **{"hoodie.write.lock.wait_time_ms": "200"}))
    assert main(["table", "create", "--table", spec]) == 0
    open_table(spec).upsert(pa.table({"id": ["a", "b"], "ts": [1, 1]}))
    holder = place.real().lock(7)
    assert isinstance(holder.try_acquire(), int)
    try:
        with pytest.raises(RetryableError, match="is held by"):
            open_table(spec).upsert(pa.table({"id": ["b"], "ts": [2]}))
        assert main(["savepoint", "create", "--table", spec]) == RetryableError.exit_code
        assert "is held by" in capsys.readouterr().err
    finally:
        holder.release()
    assert main(["savepoint", "create", "--table", spec]) == 0
    if place.policy.lock.provider != "in_process":
        recorded = json.loads(place.storage.get(SHARED_LOCK))["lock"]
        assert recorded.startswith(f"{place.policy.lock.provider} ")


@pytest.mark.parametrize("provider", ["sqlalchemy", "zookeeper", "hivemetastore"])
def test_lock_provider_without_its_address_is_refused_at_the_line_that_names_it(provider: str, tmp_path: Path) -> None:
    spec = tmp_path / "orders.yaml"

    options = f"options:\n  hoodie.parquet.block.size: 1000\n  {PROVIDER}: {provider}\n"
    spec.write_text(f"table: s.o\nlocation: /t\nrecord_key: id\n{options}")
    with pytest.raises(UserError, match=rf"orders.yaml:6: option {PROVIDER}={provider} needs "):
        load_spec(spec)


def test_options_of_a_spec_that_exclude_each_other_are_refused_when_it_is_loaded(tmp_path: Path) -> None:
    spec = tmp_path / "orders.yaml"
    spec.write_text(
        "table: s.o\nlocation: /t\nrecord_key: id\noptions:\n"
        f"  {next(iter(OPTIMISTIC))}: {next(iter(OPTIMISTIC.values()))}\n  {PROVIDER}: in_process\n"
    )
    with pytest.raises(UserError, match=r"orders.yaml:6: option .*=in_process excludes writers of the same process"):
        load_spec(spec)
