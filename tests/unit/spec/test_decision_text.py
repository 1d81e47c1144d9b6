"""Sentences about the work of a run, made from the numbers of its prediction."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse.spec.decision_text import elapsed_text, work_text
from lakehouse.spec.table.services import SERVICES


def predicted(**changed: Any) -> dict[str, Any]:
    return {"files": 12, "bytes": 2_100_000, "benefit": 9.0, "seconds": 10.2, **changed}


@pytest.mark.parametrize("service", ["compaction", "logcompaction", "clustering"])
def test_rewrite_names_bytes_time_and_the_files_that_queries_open(service: str) -> None:
    expected = "rewrites 2.1 MB in about 10 s; queries of these rows would open 3 files instead of 12"
    assert work_text(service, predicted()) == expected


def test_rewrite_without_fewer_files_says_so() -> None:
    assert work_text("clustering", predicted(benefit=-5)).endswith("queries would open as many files as before")


def test_rewrite_leaves_one_file_at_least() -> None:
    assert work_text("compaction", predicted(files=6, benefit=6)).endswith("would open 1 file instead of 6")


def test_removals_name_what_is_deleted() -> None:
    assert work_text("clean", predicted(files=120, seconds=11)) == "deletes 120 old files in about 11 s"
    assert (
        work_text("ttl", predicted(files=3, benefit=40)) == "deletes 3 expired partitions with 40 files in about 10 s"
    )
    assert work_text("archive", predicted(files=90)).startswith("archives 90 files of the timeline in about 10 s")


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_has_a_sentence_and_none_without_a_prediction(service: str) -> None:
    assert len(work_text(service, predicted()).split()) >= 4
    assert work_text(service, {}) == "" == work_text(service, {"files": 0, "seconds": 10})


def test_elapsed_time_is_rounded_to_its_largest_unit() -> None:
    shown = [elapsed_text(seconds) for seconds in (0.2, 36, 89, 540, 10_800, 172_800)]
    assert shown == ["1 s", "36 s", "89 s", "9 min", "3 h", "2 days"]
