"""A stop by a signal is no error of the code that it interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import fastavro
import pytest

from lakehouse.core.format.avro.object_file import read_record, write_record
from lakehouse.core.system import stop
from lakehouse.core.system.stop import JobStop, before_stop, stop_job
from lakehouse.errors import LakehouseError

SCHEMA = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}


@pytest.fixture(autouse=True)
def _own_preparations(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(stop, "_PREPARATIONS", [])
    yield


def test_stop_is_raised_through_handlers_of_errors() -> None:
    def swallow() -> None:
        try:
            stop_job("SIGTERM")
        except (Exception, LakehouseError):
            pytest.fail("an error handler caught the stop")

    with pytest.raises(JobStop, match="SIGTERM") as found:
        swallow()
    assert (str(found.value.error), found.value.error.exit_code) == ("SIGTERM", 75)


def test_stop_while_bytes_are_read_is_no_damage_of_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_record(SCHEMA, {"n": 7})
    assert read_record(data, SCHEMA) == {"n": 7}

    def interrupted(*_: object) -> None:
        stop_job("SIGTERM")

    monkeypatch.setattr(fastavro, "schemaless_reader", interrupted)
    with pytest.raises(JobStop):
        read_record(data, SCHEMA)


def test_preparations_are_called_once_in_order_and_their_errors_do_not_prevent_the_stop() -> None:
    calls: list[str] = []

    def named(name: str) -> Callable[[], None]:
        return lambda: calls.append(name)

    def failing() -> None:
        calls.append("failing")
        raise OSError("no connection")

    first, last = named("first"), named("last")
    for one in (first, failing, last, first):
        before_stop(one)
    with pytest.raises(JobStop):
        stop_job("SIGTERM")
    assert calls == ["first", "failing", "last"]
