"""Files as other programs write them: null texts, leading zeros, local numbers, mixed dates, other dialects."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.typed_files import typed_file

ROWS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyFile:
    """A file with the suggestion that is expected for it.

    Attributes:
        name: The name of the file.
        content: Its bytes.
        types: The expected types of some columns.
        options: The expected options of the reader.
        key: The expected record key.
        partition: The expected partition column; empty for none.
        words: Texts that the comments have.
    """

    name: str
    content: bytes
    types: Mapping[str, str]
    options: Mapping[str, str]
    key: tuple[str, ...] = ("id",)
    partition: str = ""
    words: tuple[str, ...] = ()


def _csv(header: str, row: Callable[[int], str], end: str = "\n") -> bytes:
    return (header + end + "".join(row(number) + end for number in range(ROWS))).encode()


def _day(number: int) -> str:
    return f"2026-01-{1 + number % 28:02d}"


def dirty_files() -> tuple[DirtyFile, ...]:
    """Return the files."""
    return (*_csv_files(), *_number_files(), *_time_files(), *_dialects(), *_json_files(), *_typed_files())


def _csv_files() -> tuple[DirtyFile, ...]:
    return (
        DirtyFile(
            name="nulls.csv",
            content=_csv("id,fare,seats,at,note", lambda n: f"n{n},{'NA' if n % 7 == 0 else n / 4},{n},{_day(n)},NA"),
            types={"id": "string", "fare": "double", "seats": "int", "at": "date", "note": "string"},
            options={"nullValue": "NA"},
            partition="at",
            words=("nullValue: 'NA'",),
        ),
        DirtyFile(
            name="two_nulls.csv",
            content=_csv("id,fare,tip", lambda n: f"n{n},{'NA' if n % 7 == 0 else n},{'-' if n % 50 == 0 else n}"),
            types={"fare": "int", "tip": "string"},
            options={"nullValue": "NA"},
            words=("'-' occurs in tip",),
        ),
        DirtyFile(
            name="quoted_nulls.csv",
            content=_csv("id,fare,text", lambda n: f"n{n},{'NA' if n % 7 == 0 else n},{chr(34) * 2 if n % 5 else n}"),
            types={"fare": "string", "text": "int"},
            options={},
            words=("'NA' occurs in fare",),
        ),
    )


def _number_files() -> tuple[DirtyFile, ...]:
    return (
        DirtyFile(
            name="zeros.csv",
            content=_csv("id,zip,phone,big", lambda n: f"{n},{n:05d},+49{n},{9007199254740993 + n}"),
            types={"id": "string", "zip": "string", "phone": "string", "big": "bigint"},
            options={},
            words=("leading zeros", "every value is an int"),
        ),
        DirtyFile(
            name="german.csv",
            content=_csv("id;betrag;menge;tag", lambda n: f"n{n};{1 + n}.{n:03d},5;{n};{1 + n % 28:02d}.01.2026"),
            types={"betrag": "double", "menge": "int", "tag": "date"},
            options={"sep": ";", "locale": "de-DE", "dateFormat": "dd.MM.yyyy"},
            partition="tag",
        ),
        DirtyFile(
            name="thousands.csv",
            content=_csv("id,amount,count", lambda n: f'n{n},"{1 + n},{n:03d}.50","{1 + n},{n:03d},000"'),
            types={"amount": "double", "count": "int"},
            options={"locale": "en-US"},
        ),
        DirtyFile(
            name="ambiguous.csv",
            content=_csv("id,amount,at", lambda n: f'n{n},"{1 + n},500",{1 + n % 12:02d}/{1 + n % 12:02d}/2026'),
            types={"amount": "string", "at": "string"},
            options={},
            words=("dd/MM/yyyy or MM/dd/yyyy",),
        ),
    )


def _time_files() -> tuple[DirtyFile, ...]:
    return (
        DirtyFile(
            name="mixed_dates.csv",
            content=_csv("id,at", lambda n: f"n{n},{_day(n) if n % 3 else f'{1 + n % 28:02d}.01.2026'}"),
            types={"at": "string"},
            options={},
            words=("mixed: 40 ISO dates or times", "20 texts as dd.MM.yyyy"),
        ),
        DirtyFile(
            name="times.csv",
            content=_csv("id,created_at,updated_at", lambda n: f"n{n},{_day(n)} 10:00,{_day(n)}T10:00:00.5+01:00"),
            types={"created_at": "timestamp", "updated_at": "timestamp"},
            options={},
            partition="created_at",
            words=("updated_at: by its name",),
        ),
        DirtyFile(
            name="american_times.csv",
            content=_csv("id,placed_at", lambda n: f"n{n},01/{1 + n % 28:02d}/2026 10:{n:02d}:00"),
            types={"placed_at": "timestamp"},
            options={"timestampFormat": "MM/dd/yyyy HH:mm:ss"},
            partition="placed_at",
        ),
        DirtyFile(
            name="epoch.csv",
            content=_csv("id,event_time,code", lambda n: f"n{n},{1769850000000 + n * 1000},{1769850000000 + n}"),
            types={"event_time": "bigint", "code": "bigint"},
            options={},
            partition="event_time",
            words=("probably epoch milliseconds: 2026-01-31",),
        ),
        DirtyFile(
            name="keyless.csv",
            content=_csv("a,b,f", lambda n: f"{n % 6},{n // 6},{n / 7}"),
            types={"f": "double"},
            options={},
            key=("a", "b"),
            words=("unique together",),
        ),
    )


def _dialects() -> tuple[DirtyFile, ...]:
    return (
        DirtyFile(
            name="tabs.tsv.gz",
            content=gzip.compress(_csv("id\ttext", lambda n: f"n{n}\ta, b; {n}")),
            types={"text": "string"},
            options={"sep": "\\t"},
        ),
        DirtyFile(
            name="lines.csv.bz2",
            content=bz2.compress(_csv("id,text", lambda n: f'n{n},"line\nbreak ""{n}"", and more"', "\r\n")),
            types={"text": "string"},
            options={},
        ),
        DirtyFile(
            name="escaped.csv",
            content=_csv("id,text,n", lambda n: f'n{n},"say \\"hi, {n}\\"",{n}'),
            types={"text": "string", "n": "int"},
            options={"escape": "\\"},
        ),
        DirtyFile(
            name="plain.csv.zst",
            content=pa.compress(_csv("id|n", lambda n: f"n{n}|{n}"), codec="zstd", asbytes=True),
            types={"n": "int"},
            options={"sep": "|"},
        ),
        DirtyFile(
            name="headless.csv",
            content=_csv("x1,17,2026-01-01", lambda n: f"y{n},{n},{_day(n)}"),
            types={"column_1": "string", "column_2": "int", "column_3": "date"},
            options={"header": "false"},
            key=("column_1",),
            partition="column_3",
            words=("names of the columns are invented",),
        ),
        DirtyFile(
            name="latin.csv",
            content=_csv("id;größe", lambda n: f"n{n};M\u00fcller {n}").decode().encode("windows-1252"),
            types={"größe": "string"},
            options={"sep": ";", "encoding": "windows-1252"},
            words=("windows-1252 is a guess",),
        ),
        DirtyFile(
            name="names.csv",
            content=_csv("Order ID,Größe,2nd,a,A b", lambda n: f"n{n},{n},{n / 4},x,y"),
            types={"Order ID": "string", "Größe": "int", "2nd": "double"},
            options={},
            key=("order_id",),
            words=("names that a table cannot have get new ones in 'select': 'Order ID', 'Größe', '2nd'",),
        ),
        DirtyFile(
            name="wide.csv",
            content=_csv("id,text", lambda n: f"n{n},caf\u00e9 {n}").decode().encode("utf-16"),
            types={"text": "string"},
            options={"encoding": "UTF-16"},
        ),
        DirtyFile(
            name="marked.csv",
            content=b"\xef\xbb\xbf" + _csv("id,n", lambda n: f"n{n},{n}"),
            types={"id": "string", "n": "int"},
            options={},
        ),
    )


def _record(number: int) -> dict[str, object]:
    return {
        "id": number,
        "at": f"{_day(number)}T10:00:00Z",
        "n": number / 2,
        "zip": f"{number:05d}",
        "tags": ["a", number],
        "inner": {"big": 1 << 70, "flag": True, "other": None},
        "odd": {"field name": number},
        "mixed": number if number % 2 else "x",
        "nothing": None,
    }


def _json_files() -> tuple[DirtyFile, ...]:
    records = [_record(number) for number in range(ROWS)]
    types = {
        "id": "bigint",
        "at": "timestamp",
        "n": "double",
        "zip": "string",
        "tags": "array<string>",
        "inner": "struct<big:decimal(22,0),flag:boolean,other:string>",
        "odd": "string",
        "mixed": "string",
    }
    lines = "\n".join(map(json.dumps, records))
    known = {
        "types": types,
        "partition": "at",
        "words": ("without a value in the sample, so of unknown type: nothing",),
    }
    return (
        DirtyFile(name="lines.jsonl", content=lines.encode(), options={}, **known),  # type: ignore[arg-type]
        DirtyFile(name="unnamed", content=lines.encode(), options={}, **known),  # type: ignore[arg-type]
        DirtyFile(
            name="joined.json.gz",
            content=gzip.compress("".join(map(json.dumps, records)).encode()),
            options={},
            **known,  # type: ignore[arg-type]
        ),
        DirtyFile(name="array.json", content=json.dumps(records).encode(), options={}, **known),  # type: ignore[arg-type]
        DirtyFile(
            name="pretty.json",
            content=json.dumps(records, indent=2).encode(),
            options={"multiLine": "true"},
            **known,  # type: ignore[arg-type]
        ),
        DirtyFile(
            name="epoch.json",
            content="\n".join(json.dumps({"id": n, "ts": 1769850000000 + n}) for n in range(ROWS)).encode(),
            types={"ts": "bigint"},
            options={},
            partition="ts",
            words=("epoch milliseconds",),
        ),
    )


def _typed_files() -> tuple[DirtyFile, ...]:
    table = pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "at": pa.array([1769850000000000 + n for n in range(ROWS)], pa.timestamp("us", "UTC")),
            "day": pa.array([20000 + n % 5 for n in range(ROWS)], pa.int32()).cast(pa.date32()),
            "n": pa.array(range(ROWS), pa.int32()),
            "price": pa.array([n for n in range(ROWS)], pa.decimal128(10, 2)),
            "tags": pa.array([["a"]] * ROWS, pa.list_(pa.string())),
        }
    )
    types = {"id": "bigint", "at": "timestamp", "day": "date", "n": "int", "price": "decimal(10,2)"}
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    nothing: Mapping[str, str] = {}
    return (
        DirtyFile(
            name="a.parquet", content=sink.getvalue().to_pybytes(), types=types, options=nothing, partition="day"
        ),
        DirtyFile(name="a.orc", content=typed_file(table, "orc"), types=types, options=nothing, partition="day"),
        DirtyFile(
            name="a.avro",
            content=typed_file(table, "avro"),
            types=types,
            options=nothing,
            partition="day",
        ),
    )


def write(file: DirtyFile, folder: Path) -> Path:
    """Write a file into a folder of its own; return the folder."""
    landing = folder / "landing" / file.name.partition(".")[0]
    landing.mkdir(parents=True, exist_ok=True)
    (landing / file.name).write_bytes(file.content)
    return landing
