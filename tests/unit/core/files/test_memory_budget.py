"""The shares of a memory budget: data in memory at the same time does not exceed the budget."""

from __future__ import annotations

import pytest

from lakehouse.core.files.stage.write_context import MIN_KEYS_PER_FILE, Budget

MB = 1 << 20


@pytest.mark.parametrize("megabytes", [16, 64, 512, 4096])
@pytest.mark.parametrize("width", [8, 100, 2_000])
def test_shares_of_a_phase_do_not_exceed_the_budget(megabytes: int, width: int) -> None:
    budget = Budget(megabytes * MB)
    window = budget.window_rows(width) * width
    phases = {
        "stage": 3 * budget.pending_bytes,
        "tag": budget.hashed_keys(width) * (2 * width + 72)
        + budget.looked_up_keys(width) * width
        + budget.matches * 64,
        "write": 2 * budget.decoded_bytes
        + 2 * window
        + budget.encode_bytes
        + budget.hash_bytes
        + 5 * budget.filter_bytes,
        "bulk": 4 * budget.gathered_bytes
        + budget.open_files_bytes
        + budget.held_key_bytes
        + budget.hash_bytes
        + budget.filter_bytes,
    }
    assert {name for name, size in phases.items() if size > budget.shared_bytes} <= (
        # The minimum number of rows of two kilobytes exceeds the share of a small budget.
        {"write", "tag"} if width == 2_000 and megabytes == 16 else set()
    )


def test_tiny_budget_still_makes_progress() -> None:
    budget = Budget(2_000)
    assert budget.hashed_keys(20) >= 1
    assert budget.window_rows(100) == budget.looked_up_keys(20) == budget.matches == 1_024
    assert budget.keys_per_file(1e-9) == MIN_KEYS_PER_FILE


def test_keys_per_file_fit_the_share_of_the_filter() -> None:
    # 43.1 bits per key at a rate of 1e-9; 3 MB of the 48 MB that are shared.
    assert Budget(64 * MB).keys_per_file(1e-9) == pytest.approx(3 * MB * 8 / 43.13, rel=1e-3)
