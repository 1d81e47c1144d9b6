"""Which commits exclude each other (format: timeline.md 8.2)."""

from __future__ import annotations

import pytest

from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.instant import Action, Instant, State
from lakehouse.plan.conflict import find_conflict

RIVAL = Instant(requested="5", action=Action.COMMIT, state=State.COMPLETED, completed="6")


def stat(partition: str, group: str, *, inserts: int = 0) -> WriteStat:
    """A stat of one file."""
    return WriteStat(partition=partition, file_id=group, path=f"{partition}/{group}", num_inserts=inserts)


def metadata(*stats: WriteStat, replaced: dict[str, tuple[str, ...]] | None = None) -> CommitMetadata:
    """Metadata of these files."""
    return CommitMetadata(operation="UPSERT", stats=stats, replaced=replaced or {})


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (metadata(stat("a", "g")), metadata(stat("a", "g"))),
        (metadata(stat("a", "g")), metadata(replaced={"a": ("g",)})),
        (metadata(stat("a", "new", inserts=1)), metadata(stat("a", "other", inserts=1))),
    ],
)
def test_two_writers_of_one_place_conflict(mine: CommitMetadata, theirs: CommitMetadata) -> None:
    overlap = find_conflict([(RIVAL, theirs)], frozenset(), mine, keyed=True)
    assert overlap is not None
    assert overlap.winner == RIVAL and RIVAL.requested in overlap.reason and "'a'" in overlap.reason


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (metadata(stat("a", "g")), metadata(stat("b", "g"))),
        (metadata(stat("a", "g")), metadata(stat("a", "h"))),
        (metadata(stat("a", "g", inserts=1)), metadata(stat("b", "h", inserts=1))),
        (metadata(stat("a", "g", inserts=1)), metadata(stat("a", "h"))),
    ],
)
def test_writers_of_different_places_do_not(mine: CommitMetadata, theirs: CommitMetadata) -> None:
    assert find_conflict([(RIVAL, theirs)], frozenset(), mine, keyed=True) is None


def test_a_replaced_group_is_touched_though_no_file_is_written() -> None:
    overlap = find_conflict([(RIVAL, metadata(stat("a", "g")))], frozenset({("a", "g")}), metadata(), keyed=True)
    assert overlap is not None


def test_with_buckets_the_same_new_key_goes_to_the_same_group() -> None:
    mine, theirs = metadata(stat("a", "00000000-x", inserts=1)), metadata(stat("a", "00000001-x", inserts=1))
    assert find_conflict([(RIVAL, theirs)], frozenset(), mine, keyed=False) is None


def test_without_others_there_is_nobody_to_lose_to() -> None:
    assert find_conflict([], frozenset({("a", "g")}), metadata(stat("a", "g", inserts=1)), keyed=True) is None
