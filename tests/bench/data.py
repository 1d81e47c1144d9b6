"""Test data: orders of a ride-hailing service with 12 columns of common types, random keys and 20 partitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

KEY, PARTITION, ORDERING = "order_id", "zone", "updated_at"
ZONES = 20
_STATUS = pa.array(["requested", "accepted", "started", "finished", "cancelled"])
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_CHUNK = 500_000

SCHEMA = pa.schema(
    [
        (KEY, pa.string()),
        ("rider_id", pa.int64()),
        ("driver_id", pa.int64()),
        (PARTITION, pa.string()),
        ("status", pa.string()),
        ("requested_at", pa.timestamp("us", "UTC")),
        (ORDERING, pa.int64()),
        ("fare", pa.float64()),
        ("tip", pa.float64()),
        ("distance_km", pa.float64()),
        ("seats", pa.int32()),
        ("note", pa.string()),
    ]
)


def orders(numbers: np.ndarray, version: int = 0) -> pa.Table:
    """Return the orders of these numbers; some columns depend on `version`, but key and zone do not."""
    mixed = _mix(numbers.astype(np.uint64))
    state = _mix(mixed + np.uint64(version))
    zones = pa.array([f"zone-{zone:02d}" for zone in range(ZONES)])
    columns = [
        _hex_text(mixed),
        (mixed % np.uint64(500_000)).astype(np.int64),
        (state % np.uint64(30_000)).astype(np.int64),
        zones.take(pa.array((mixed >> np.uint64(40)) % np.uint64(ZONES))),
        _STATUS.take(pa.array(state % np.uint64(5))),
        pa.array(1_760_000_000_000_000 + numbers.astype(np.int64) * 250_000, pa.timestamp("us", "UTC")),
        1_760_000_000_000 + numbers.astype(np.int64) + version * 3_600_000,
        np.round((state >> np.uint64(20)) % np.uint64(9_000) / 100 + 2.5, 2),
        np.round((state >> np.uint64(35)) % np.uint64(2_000) / 100, 2),
        (mixed >> np.uint64(11)) / 2.0**53 * 40,
        (1 + mixed % np.uint64(4)).astype(np.int32),
        pa.compute.binary_join_element_wise("pick up at door ", _hex_text(state), ""),
    ]
    return pa.table(columns, schema=SCHEMA)


def write_orders(directory: Path, numbers: np.ndarray, *, files: int, version: int = 0) -> str:
    """Write orders to `files` Parquet files unless they exist; return the directory."""
    done = directory / "_SUCCESS"
    if not done.exists():
        directory.mkdir(parents=True, exist_ok=True)
        for part, chosen in enumerate(np.array_split(numbers, files)):
            with pq.ParquetWriter(directory / f"part-{part:03d}.parquet", SCHEMA, compression="zstd") as writer:
                for start in range(0, len(chosen), _CHUNK):
                    writer.write_table(orders(chosen[start : start + _CHUNK], version))
        done.touch()
    return str(directory)


def updates(rows: int, share: float, seed: int) -> np.ndarray:
    """Return the numbers of a random share of the stored rows."""
    return np.random.default_rng(seed).choice(rows, int(rows * share), replace=False)


def changes(rows: int, share: float, seed: int) -> np.ndarray:
    """Return the numbers of a change set: a random share of the stored rows, and a tenth as many new rows."""
    chosen = updates(rows, share, seed)
    new = np.arange(len(chosen) // 10) + rows * (1 + seed)
    return np.concatenate([chosen, new])


def _mix(numbers: np.ndarray) -> np.ndarray:
    """Return a 64-bit hash of each number without collisions (splitmix64)."""
    with np.errstate(over="ignore"):
        mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))


def _hex_text(numbers: np.ndarray) -> pa.Array:
    """Return each number as 16 hex digits."""
    data = numbers.astype(">u8").view(np.uint8)
    digits = np.empty(len(data) * 2, np.uint8)
    digits[0::2], digits[1::2] = _HEX[data >> 4], _HEX[data & 15]
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * 16
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(digits))
