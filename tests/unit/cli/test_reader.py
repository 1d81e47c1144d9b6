"""The process that runs read commands of pages: commands keep tables open, and errors are answers."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from lakehouse.cli.reader import answer, serve
from lakehouse.cli.table import keep_tables, open_table
from lakehouse.spec.contracts.reader import ReaderAnswer, ReaderRequest
from tests.support.lake import build

TABLE = "sales.orders"


@pytest.fixture(autouse=True)
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    build(tmp_path)


def request(*words: str) -> ReaderRequest:
    return ReaderRequest(words=(*words, f"--table={TABLE}", "--output=json"))


def test_answers_are_lines_in_the_order_of_the_requests() -> None:
    (inward, requests), (answers, outward) = os.pipe(), os.pipe()
    words = [request("timeline", "bars"), request("timeline", "bras"), request("table", "files")]
    os.write(requests, "".join(f"{one.to_json()}\n" for one in words).encode())
    os.close(requests)
    thread = threading.Thread(target=serve, args=(inward, outward, 5))
    thread.start()
    with os.fdopen(answers, "rb") as lines:
        bars, wrong, files = (ReaderAnswer.from_json(lines.readline()) for _ in words)
    thread.join()
    assert len(json.loads(bars.output)["instants"]) == 7 and json.loads(files.output)["total"] == 4
    assert (wrong.exit_code, wrong.output) == (64, "") and "Did you mean 'bars'?" in wrong.errors


def test_reader_ends_when_it_is_idle() -> None:
    (inward, requests), (_, outward) = os.pipe(), os.pipe()
    serve(inward, outward, 0.01)
    os.close(requests)


def test_command_that_exits_is_an_answer() -> None:
    helped = answer(ReaderRequest(words=("timeline", "--help")))
    assert helped.exit_code == 0 and "Show the instants of a table" in helped.output
    assert answer(ReaderRequest(words=("tmeline",))).exit_code == 64


def test_kept_table_is_the_same_one_and_sees_new_commits() -> None:
    with keep_tables():
        first = open_table(TABLE)
        second = open_table(TABLE)
        assert second.loaded.env is first.loaded.env
        assert second.loaded.store is first.loaded.store
        open_table(TABLE).savepoint(first.timeline.instants[0].requested)
        assert len(json.loads(answer(request("timeline", "bars")).output)["instants"]) == 8
    assert open_table(TABLE).loaded.store is not first.loaded.store
