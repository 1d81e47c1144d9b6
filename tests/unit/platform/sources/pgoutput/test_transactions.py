"""Which transactions a snapshot of PostgreSQL sees."""

from __future__ import annotations

import pytest

from lakehouse.errors import UserError
from lakehouse.platform.sources.pgoutput.decoder import TransactionSet

_EPOCH = 1 << 32


def test_snapshot_sees_transactions_that_ended_before_it() -> None:
    shown = TransactionSet.parse("10:20:11,15")
    assert [number for number in range(3, 25) if shown.has(number)] == [*range(3, 11), 12, 13, 14, 16, 17, 18, 19]
    assert not any(TransactionSet.parse("").has(number) for number in (1, 10, _EPOCH - 1))


def test_snapshot_sees_the_same_transactions_after_their_numbers_began_again() -> None:
    shown = TransactionSet.parse(f"{3 * _EPOCH - 5}:{3 * _EPOCH + 5}:{3 * _EPOCH - 2},{3 * _EPOCH + 4}")
    assert [shown.has(number % _EPOCH) for number in (-6, -5, -2, -1, 3, 4, 5, 6)] == [
        *(True, True, False, True),
        *(True, False, False, False),
    ]


def test_snapshot_of_another_form_is_refused() -> None:
    with pytest.raises(UserError, match="'10-20' is not a snapshot of PostgreSQL"):
        TransactionSet.parse("10-20")
