"""Delete blocks with Java objects: lakehouse decodes objects serialized by Hudi, and merges them like Hudi does."""

from __future__ import annotations

import base64
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.format.log.blocks import BlockHeader, BlockType, encode_block
from lakehouse.core.format.log.delete_objects import decode_any_deletes
from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.interop.mor_tables import HUDI_OPTIONS, ORDERED
from tests.support.fixture_tables import load_fixture_tables
from tests.support.hudi import JARS, ROOT, Hudi
from tests.support.java_deletes import TRIPS, framed, trips_with_deletes

pytestmark = pytest.mark.jvm

SOURCE = ROOT / "tests" / "support" / "DeleteBlocks.java"
EPOCH, DAY_0 = datetime(1970, 1, 1), date(1970, 1, 1)
LETTERS = ["a", "z", "=", "/", "\0", "\u00e9", "\u20ac", "\U0001f600", "k" * 61]
Draw = Callable[[random.Random], tuple[str, Any]]
Entry = tuple[str, str | None, list[tuple[str, str, Any]]]


def draw_text(rng: random.Random) -> tuple[str, str]:
    value = "".join(rng.choices(LETTERS, k=rng.choice([0, 1, 2, 3, 70])))
    return base64.b64encode(value.encode()).decode(), value


def draw_number(bits: int) -> Draw:
    def draw(rng: random.Random) -> tuple[str, int]:
        value = rng.randrange(1 << rng.randrange(1, bits)) * rng.choice([1, -1]) or 1
        return str(value), value

    return draw


def draw_decimal(rng: random.Random) -> tuple[str, Decimal]:
    value = Decimal(rng.randrange(-(10**30), 10**30)).scaleb(-6, Context(prec=40))
    return str(value), value


def draw_float(rng: random.Random) -> tuple[str, float]:
    value = rng.randrange(-(2**20), 2**20) / 8
    return repr(value), value


def draw_boolean(rng: random.Random) -> tuple[str, bool]:
    value = rng.random() < 0.5
    return str(value).lower(), value


def draw_day(rng: random.Random) -> tuple[str, date]:
    days = rng.randrange(-40_000, 90_000)
    return str(days), DAY_0 + timedelta(days)


def draw_time(micros: int) -> Draw:
    def draw(rng: random.Random) -> tuple[str, datetime]:
        count = rng.randrange(-(10**15), 4 * 10**15) // micros
        return str(count), EPOCH + timedelta(microseconds=count * micros)

    return draw


VERSION_6 = {
    "hoodie.write.table.version": "6",
    "hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
}
FIFTH = datetime(2024, 1, 5, tzinfo=UTC)
#: Type and value of an ordering column, and the Java class and values of deletes: lower, equal and higher. Dates and
#: timestamps use Integer and Long, because Hudi 1.2 cannot compare such columns with Java's date and time classes.
COMPARED: dict[str, tuple[pa.DataType, Any, str, list[str]]] = {
    "long": (pa.int64(), 5, "Long", ["1", "5", "9"]),
    "string": (pa.string(), "m", "String", ["YQ==", "bQ==", "eg=="]),
    "double": (pa.float64(), 5.0, "Double", ["1", "5", "9"]),
    "decimal": (pa.decimal128(9, 2), Decimal("5.25"), "BigDecimal", ["1.25", "5.25", "9.25"]),
    "date": (pa.date32(), FIFTH.date(), "Integer", ["19726", "19727", "19728"]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        FIFTH,
        "Long",
        [str(int(FIFTH.timestamp()) * 1_000_000 + late) for late in (-1, 0, 1)],
    ),
    "no value": (pa.int64(), 5, "Integer", ["-", "-", "-"]),
    "zero": (pa.int64(), 5, "Integer", ["0", "0", "0"]),
}
CLASSES: dict[str, tuple[pa.DataType, Draw]] = {
    "Integer": (pa.int32(), draw_number(31)),
    "Long": (pa.int64(), draw_number(63)),
    "Float": (pa.float32(), draw_float),
    "Double": (pa.float64(), draw_float),
    "Boolean": (pa.bool_(), draw_boolean),
    "String": (pa.string(), draw_text),
    "UTF8String": (pa.string(), draw_text),
    "BigDecimal": (pa.decimal128(38, 6), draw_decimal),
    "LocalDate": (pa.date32(), draw_day),
    "SqlDate": (pa.date32(), draw_day),
    "Timestamp": (pa.timestamp("us"), draw_time(1_000)),
    "Instant": (pa.timestamp("us"), draw_time(1)),
}


@pytest.fixture(scope="module")
def serialize() -> Callable[[list[str]], list[bytes]]:
    """Return a function that serializes lines to delete blocks with Hudi's classes; see DeleteBlocks.java."""
    jars = sorted((ROOT / ".jars").glob(JARS))
    spark = sorted((ROOT / ".venv-hudi").glob("lib/python3*/site-packages/pyspark/jars"))
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not jars or not spark:
        pytest.skip("missing: Apache Hudi's jar or its Spark; run `make interop`")
    asked = [java or "", "--list-modules"]
    if java is None or "jdk.compiler" not in subprocess.run(asked, capture_output=True, text=True, check=True).stdout:
        pytest.skip("missing: a JDK, which compiles DeleteBlocks.java; install JDK 17")

    def serialized(lines: list[str]) -> list[bytes]:
        command = [java, "-XX:TieredStopAtLevel=1", "-cp", f"{jars[-1]}:{spark[-1]}/*", str(SOURCE)]
        text = "".join(f"{line}\n" for line in lines)
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr[-4000:]
        return [bytes.fromhex(line) for line in done.stdout.split()]

    return serialized


def drawn(rng: random.Random, names: list[str]) -> list[Entry]:
    """Return random entries with ordering values of these classes; some values are null."""
    entries: list[Entry] = []
    for _ in range(rng.randrange(8)):
        partition = rng.choice([None, "", "p=1", draw_text(rng)[1]])
        if len(names) == 1 and rng.random() < 0.2:
            values: list[tuple[str, str, Any]] = [(names[0], "-", None)]
        else:
            values = [(name, *CLASSES[name][1](rng)) for name in names]
        entries.append((draw_text(rng)[1], partition, values))
    return entries


def line(version: int, shared: bool, entries: list[Entry]) -> str:
    def coded(text: str | None) -> str:
        return "-" if text is None else base64.b64encode(text.encode()).decode()

    words = [
        ",".join([coded(key), coded(partition), *(word for name, text, _ in values for word in (name, text))])
        for key, partition, values in entries
    ]
    return " ".join([str(version), str(shared).lower(), *words])


def test_delete_records_of_hudi_decode_to_the_serialized_values(serialize: Callable[[list[str]], list[bytes]]) -> None:
    rng = random.Random(14)
    orders = [[name] for name in CLASSES] * 12 + [["Integer", "String"], ["LocalDate", "Instant", "BigDecimal"]] * 12
    cases = [(order, rng.random() < 0.5, drawn(rng, order)) for order in orders]
    blocks = serialize([line(2, shared, entries) for _, shared, entries in cases])
    assert len(blocks) == len(cases)
    for (order, _, entries), block in zip(cases, blocks, strict=True):
        read = decode_any_deletes(framed(2, block), [CLASSES[name][0] for name in order])
        assert read.keys.to_pylist() == [key for key, _, _ in entries]
        assert read.partitions.to_pylist() == [partition for _, partition, _ in entries]
        assert read.default.tolist() == [values[0][2] is None for _, _, values in entries]
        found = list(zip(*(column.to_pylist() for column in read.ordering), strict=True))
        assert found == [tuple(value for _, _, value in values) for _, _, values in entries]


def test_keys_of_hudi_decode_to_the_serialized_keys(serialize: Callable[[list[str]], list[bytes]]) -> None:
    rng = random.Random(14)
    cases = [(shared, drawn(rng, ["Integer"])) for shared in (False, True) for _ in range(10)]
    for (_, entries), block in zip(cases, serialize([line(1, *case) for case in cases]), strict=True):
        read = decode_any_deletes(framed(1, block), [pa.int32()])
        assert read.keys.to_pylist() == [key for key, _, _ in entries]
        assert read.partitions.to_pylist() == [partition for _, partition, _ in entries]
        assert read.default.all()


def test_avro_strings_of_a_newer_hudi_are_rejected_as_an_unknown_class(
    serialize: Callable[[list[str]], list[bytes]],
) -> None:
    (block,) = serialize([line(2, False, [("k", "p", [("Utf8", "dGV4dA==", "text")])])])
    with pytest.raises(UnsupportedError, match="an unknown class, registered as"):
        decode_any_deletes(framed(2, block), [pa.string()])


@pytest.mark.parametrize("event", [False, True], ids=["commit time", "event time"])
def test_hudi_reads_a_table_with_java_deletes_like_lakehouse(event: bool, hudi: Hudi, tmp_path: Path) -> None:
    (trips,) = (table for table in load_fixture_tables() if table.name == TRIPS)
    table = Table.open(str(trips_with_deletes(trips, tmp_path, event=event)))
    assert_hudi_reads_the_same(hudi, table)


@pytest.mark.parametrize("name", COMPARED)
def test_hudi_compares_ordering_values_of_java_like_lakehouse(
    name: str, serialize: Callable[[list[str]], list[bytes]], hudi: Hudi, tmp_path: Path
) -> None:
    kind, value, of_class, deletes = COMPARED[name]
    rows = pa.table({"id": ["a", "b", "c", "d"], "ts": pa.array([value] * 4, kind), "v": ["x"] * 4})
    location = tmp_path / "table"
    hudi.write(str(location), rows, {**HUDI_OPTIONS, **ORDERED, **VERSION_6}, mode="overwrite")
    (base,) = location.glob("*.parquet")
    group, _, instant = base.stem.split("_")
    entries: list[Entry] = [(key, "", [(of_class, text, None)]) for key, text in zip("abc", deletes, strict=True)]
    content = framed(2, serialize([line(2, False, entries)])[0])
    block = encode_block(BlockType.DELETE, {BlockHeader.INSTANT_TIME: instant}, content)
    base.with_name(f".{group}_{instant}.log.1_0-0-0").write_bytes(block)
    left = assert_hudi_reads_the_same(hudi, Table.open(str(location)))
    assert sorted(left.column("id").to_pylist()) == (
        ["d"] if of_class == "Integer" and kind == pa.int64() else ["a", "d"]
    )
