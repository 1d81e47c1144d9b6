"""Generate sample data of a ride-hailing company: files of order events and trip events, one per hour and stream.

One order has several events; each is written to the file of the hour in which it *arrives*:

    requested --> accepted --> picked_up --> completed --> (tip added hours later)
        \\-> cancelled             \\ trip opens       \\ trip closes: dropoff and distance known

The data has the difficulties of real input: the events of an order are in several files, some events arrive hours
late, after newer events of the same order, some events are twice in one file, zones are skewed, and the first event of
a trip has no dropoff. The same seed gives the same bytes, and hour N does not depend on `hours`.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.errors import UserError

log = logging.getLogger(__name__)

Micros = npt.NDArray[np.int64]
Format = Literal["json", "parquet"]

HOUR_US = 3_600_000_000
MINUTE_US = 60_000_000

ZONES = 120
DRIVERS_PER_HUNDRED_ORDERS = 20
#: Shares of orders or events that are cancelled, tipped hours later, delivered late, delivered twice.
CANCELLED, TIPPED, LATE, DUPLICATED = 0.12, 0.15, 0.03, 0.01
LATEST_HOURS = 6

_TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """The result of a call: file paths in the order of their hours, and the number of events (rows) per stream."""

    files: tuple[Path, ...]
    orders: int
    trips: int


# parameters: the settings of a generator, each with a default
def generate(
    out_dir: Path | str,
    *,
    hours: int,
    orders_per_hour: int,
    seed: int = 7,
    start: datetime = datetime(2026, 1, 1),
    format: Format = "json",
) -> Generated:
    """Write `hours` files of each stream, `orders/2026-01-01/00.json` and `trips/...`.

    Events that arrive after the last hour are left out.

    Args:
        out_dir: The folder to write to.
        hours: The number of hours.
        orders_per_hour: The number of new orders per hour; each has about four order events and two trip events.
        seed: The seed of the random values.
        start: The first hour, in UTC.
        format: The format of the files.

    Raises:
        UserError: A number is below 1, or the format is unknown.
    """
    if hours < 1 or orders_per_hour < 1:
        raise UserError(
            f"ride-hailing data needs at least 1 hour and 1 order per hour, got {hours} and {orders_per_hour}"
        )
    if format not in ("json", "parquet"):
        raise UserError(f"ride-hailing data is written as json or parquet, not {format!r}")
    root = Path(out_dir)
    first_us = _micros(start)
    arriving: dict[tuple[str, int], list[pa.Table]] = defaultdict(list)
    files: list[Path] = []
    rows = {"orders": 0, "trips": 0}
    for hour in range(hours):
        for stream, events in hour_of_orders(
            hour, orders_per_hour=orders_per_hour, seed=seed, first_us=first_us
        ).items():
            arriving[stream, hour].append(events.slice(0, 0).drop_columns(["arrival"]))
            for arrival, part in _by_arrival(events):
                arriving[stream, arrival].append(part)
            table = pa.concat_tables(arriving.pop((stream, hour)))
            path = root / stream / f"{start + timedelta(hours=hour):%Y-%m-%d/%H}.{format}"
            _write(table, path, format)
            files.append(path)
            rows[stream] += table.num_rows
        if (hour + 1) % 24 == 0:
            log.info("ride-hailing data: %s of %s hours, %s order events", hour + 1, hours, rows["orders"])
    return Generated(files=tuple(files), orders=rows["orders"], trips=rows["trips"])


def hour_of_orders(hour: int, *, orders_per_hour: int, seed: int, first_us: int) -> Mapping[str, pa.Table]:
    """Return all events of the orders of one hour; the column `arrival` is the hour of the file of each event."""
    rng = np.random.default_rng((seed, hour))
    n = orders_per_hour
    created = first_us + hour * HOUR_US + np.sort(rng.integers(0, HOUR_US, n))
    accepted = created + rng.integers(20_000_000, 5 * MINUTE_US, n)
    picked_up = accepted + rng.integers(MINUTE_US, 15 * MINUTE_US, n)
    completed = picked_up + rng.integers(3 * MINUTE_US, 80 * MINUTE_US, n)
    tipped = completed + rng.integers(30 * MINUTE_US, 5 * 60 * MINUTE_US, n)
    cancelled = rng.random(n) < CANCELLED
    distance = np.round((completed - picked_up) / MINUTE_US * rng.uniform(0.25, 0.7, n), 2)
    estimate = np.round(2.5 + 1.4 * distance * rng.uniform(0.85, 1.15, n), 2)
    fare = np.round(2.5 + 1.4 * distance, 2)
    tip = np.round(fare * rng.uniform(0.05, 0.25, n), 2)
    drivers = max(1, n * DRIVERS_PER_HUNDRED_ORDERS // 100)
    order = {
        "order_id": _ids(f"o{hour:06d}-", np.arange(n), 6),
        "rider_id": _ids("r", rng.integers(0, n * 50, n), 8),
        "driver_id": _ids("d", (drivers * rng.random(n) ** 2).astype(np.int64), 6),
        "zone": _ids("zone-", _skewed(rng, n), 3),
    }
    not_cancelled, every_order = ~cancelled, np.ones(n, dtype=bool)
    steps = (
        # (status, time of the event, mask of the orders that have it, fare, tip)
        ("requested", created, every_order, estimate, None),
        ("accepted", accepted, not_cancelled, estimate, None),
        ("cancelled", accepted, cancelled, np.zeros(n), None),
        ("picked_up", picked_up, not_cancelled, estimate, None),
        ("completed", completed, not_cancelled, fare, None),
        ("tipped", tipped, not_cancelled & (rng.random(n) < TIPPED), fare, tip),
    )
    orders = pa.concat_tables([_order_events(order, created, *step) for step in steps])
    trips = pa.concat_tables(
        [
            _trip_events(order, picked_up, None, None, picked_up, not_cancelled),
            _trip_events(order, picked_up, completed, distance, completed, not_cancelled),
        ]
    )
    return {"orders": _delivered(rng, orders, first_us), "trips": _delivered(rng, trips, first_us)}


def json_lines(table: pa.Table) -> pa.Buffer:
    """Return string, float and UTC timestamp columns as JSON lines; no value may need JSON escapes."""
    parts: list[pa.ChunkedArray | str] = []
    for position, name in enumerate(table.column_names):
        parts += [f'{"," if position else "{"}"{name}":', _json_values(table.column(name))]
    lines = pc.binary_join_element_wise(*(_joinable(p) for p in parts), "}\n", "")
    text = (
        pa.concat_arrays(lines.chunks).cast(pa.large_string()) if lines.num_chunks else pa.array([], pa.large_string())
    )
    data = text.buffers()[2]
    return data if data is not None and table.num_rows else pa.py_buffer(b"")


# parameters: the columns of an event
def _order_events(
    order: Mapping[str, pa.Array],
    created: Micros,
    status: str,
    at: Micros,
    mask: npt.NDArray[np.bool_],
    fare: npt.NDArray[np.float64],
    tip: npt.NDArray[np.float64] | None,
) -> pa.Table:
    n = len(created)
    without_driver = status in ("requested", "cancelled")
    columns = {
        "order_id": order["order_id"],
        "rider_id": order["rider_id"],
        "driver_id": pa.nulls(n, pa.string()) if without_driver else order["driver_id"],
        "zone": order["zone"],
        "status": pa.array(np.full(n, status)).cast(pa.string()),
        "fare": pa.array(fare),
        "tip": pa.nulls(n, pa.float64()) if tip is None else pa.array(tip),
        "created_at": pa.array(created).cast(_TIMESTAMP),
        "updated_at": pa.array(at).cast(_TIMESTAMP),
        "order_date": _dates(created),
    }
    return pa.table(columns).filter(pa.array(mask))


# parameters: the columns of an event
def _trip_events(
    order: Mapping[str, pa.Array],
    picked_up: Micros,
    dropped_off: Micros | None,
    distance: npt.NDArray[np.float64] | None,
    at: Micros,
    mask: npt.NDArray[np.bool_],
) -> pa.Table:
    n = len(picked_up)
    columns = {
        "trip_id": pc.replace_substring_regex(order["order_id"], pattern="^o", replacement="t"),
        "order_id": order["order_id"],
        "driver_id": order["driver_id"],
        "zone": order["zone"],
        "pickup_at": pa.array(picked_up).cast(_TIMESTAMP),
        "dropoff_at": pa.nulls(n, _TIMESTAMP) if dropped_off is None else pa.array(dropped_off).cast(_TIMESTAMP),
        "distance_km": pa.nulls(n, pa.float64()) if distance is None else pa.array(distance),
        "updated_at": pa.array(at).cast(_TIMESTAMP),
        "trip_date": _dates(picked_up),
    }
    return pa.table(columns).filter(pa.array(mask))


def _delivered(rng: np.random.Generator, events: pa.Table, first_us: int) -> pa.Table:
    """Return the events in the order of delivery, some late and some twice, with the column `arrival`."""
    at = events.column("updated_at").cast(pa.int64()).to_numpy()
    late = rng.random(len(at)) < LATE
    arrival = (at - first_us) // HOUR_US + np.where(late, rng.integers(1, LATEST_HOURS + 1, len(at)), 0)
    twice = np.flatnonzero(rng.random(len(at)) < DUPLICATED)
    rows = np.concatenate([np.arange(len(at)), twice])
    rows = rows[np.lexsort((rng.random(len(rows)), at[rows] // MINUTE_US, arrival[rows]))]
    return events.append_column("arrival", pa.array(arrival)).take(pa.array(rows))


def _by_arrival(events: pa.Table) -> list[tuple[int, pa.Table]]:
    """Divide events that are ordered by `arrival` into one slice per hour."""
    arrival = events.column("arrival").to_numpy()
    starts = np.flatnonzero(np.diff(arrival, prepend=-1))
    ends = np.append(starts[1:], len(arrival))
    data = events.drop_columns(["arrival"])
    return [(int(arrival[a]), data.slice(a, b - a)) for a, b in zip(starts, ends, strict=True)]


def _skewed(rng: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
    weights = 1.0 / np.arange(1, ZONES + 1) ** 1.1
    return rng.choice(ZONES, size=n, p=weights / weights.sum()).astype(np.int64)


def _ids(prefix: str, numbers: npt.NDArray[np.int64], width: int) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width=width, padding="0")
    return pc.binary_join_element_wise(prefix, digits, "")


def _dates(at: Micros) -> pa.Array:
    return pc.strftime(pa.array(at).cast(_TIMESTAMP), format="%Y-%m-%d")


def _micros(start: datetime) -> int:
    return int((start.replace(tzinfo=None) - datetime(1970, 1, 1)) / timedelta(microseconds=1))


def _json_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        column = pc.strftime(column, format="%Y-%m-%dT%H:%M:%SZ")
    if pa.types.is_string(column.type):
        column = pc.binary_join_element_wise('"', column, '"', "")
    return pc.fill_null(column.cast(pa.string()), "null")


def _joinable(part: pa.ChunkedArray | str) -> pa.ChunkedArray | pa.Scalar:
    return pa.scalar(part) if isinstance(part, str) else part


def _write(table: pa.Table, path: Path, format: Format) -> None:
    """Write a hidden file and rename it, so that a run that lists the folder never sees a partial file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.tmp")
    if format == "parquet":
        pq.write_table(table, partial, compression="zstd")
    else:
        partial.write_bytes(json_lines(table))
    os.replace(partial, path)
