"""The cells of Apache Hudi 1.0 and 1.1 in the matrix of readers are true (tests/interop/readers.yaml).

`make hudi-releases` fetches their bundles. CI leaves these tests out: test_readers.py tries the oldest and the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from docs.generators.readers import load_readers
from tests.support.hudi import Hudi, find_older_jar
from tests.support.readers import Sample, contradictions, read_by_hudi, samples_of_hudi, samples_of_lakehouse

pytestmark = pytest.mark.jvm

READERS = {reader.id: reader for reader in load_readers()}


@contextmanager
def release(version: str, home: Path) -> Iterator[Hudi]:
    """Yield a release of Apache Hudi on Spark."""
    jar = find_older_jar(version)
    home.mkdir()
    process = Hudi(jar, home)
    try:
        yield process
    finally:
        process.close()


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sample, ...]:
    """Return a table of each version and type."""
    home = tmp_path_factory.mktemp("samples")
    with release("0.15.0", home / "hudi-0.15") as hudi:
        return (*samples_of_hudi(hudi, home), *samples_of_lakehouse(home))


def after(sample: Sample) -> Sample:
    """Return the sample with a start after its first commit, because Hudi 1.0 reads from the start, inclusive."""
    return sample if sample.version == 6 else replace(sample, start=str(int(sample.start) + 1))


def test_hudi_1_0_reads_what_the_matrix_says(samples: tuple[Sample, ...], tmp_path: Path) -> None:
    with release("1.0.2", tmp_path / "hudi") as hudi:
        found = list(contradictions(READERS["hudi-1.0"], map(after, samples), read_by_hudi(hudi)))
    assert found == []


def test_hudi_1_1_reads_what_the_matrix_says(samples: tuple[Sample, ...], tmp_path: Path) -> None:
    with release("1.1.1", tmp_path / "hudi") as hudi:
        found = list(contradictions(READERS["hudi-1.1"], samples, read_by_hudi(hudi)))
    assert found == []
