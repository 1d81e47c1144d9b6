"""Fuzzers of `make reliability`: damaged input of every decoder, damaged tables of lakehouse and Apache Hudi."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.fixture_tables import load_fixture_tables
from tests.support.fuzz import Defect, files_below, files_of, fuzz_decoder, fuzz_table
from tests.support.hostile import busy_table, decoders

_LARGEST_FIXTURE = 400


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """Numbers of damaged inputs, decoders and tables, and the defects that were found."""

    inputs: int
    decoders: int
    tables: int
    golden: int
    defects: tuple[Defect, ...]


def fuzz(cases: int) -> Fuzzed:
    """Damage the input of each decoder `cases` times, and each table a hundredth as often, at least ten times."""
    logging.disable(logging.CRITICAL)
    try:
        known, own, golden = decoders(), dict(_own_tables()), dict(_golden_tables())
        of_tables = range(max(cases // 100, 10))
        defects: list[Defect] = []
        for name, (seeds, decode) in known.items():
            defects += fuzz_decoder(name, seeds, decode, range(cases))
        for name, files in {**own, **golden}.items():
            defects += fuzz_table(name, files, of_tables)
    finally:
        logging.disable(logging.NOTSET)
    tables = len(own) + len(golden)
    inputs = len(known) * cases + tables * len(of_tables)
    return Fuzzed(inputs, len(known), tables, len(golden), tuple(defects))


def _own_tables() -> Iterator[tuple[str, Mapping[str, bytes]]]:
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ"):
        for version in (6, 8, 9):
            yield f"{kind} {version}", files_of(busy_table(kind, version).refresh().env.storage)


def _golden_tables() -> Iterator[tuple[str, Mapping[str, bytes]]]:
    """Yield the tables of the shared folder; if it is missing, the report shows 0 tables of Apache Hudi."""
    try:
        fixtures = [table for table in load_fixture_tables() if table.is_supported]
    except pytest.skip.Exception:
        return
    for table in fixtures:
        with tempfile.TemporaryDirectory() as directory:
            files = files_below(table.unpack(Path(directory)))
        if len(files) <= _LARGEST_FIXTURE:
            yield table.name, files
