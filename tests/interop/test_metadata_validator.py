"""Apache Hudi's own HoodieMetadataTableValidator passes on tables after random histories.

It is part of hudi-utilities, which is not published to Maven Central for Hudi 1.2, so these tests run only where the
jars are: LAKEHOUSE_HUDI_UTILITIES is their paths, separated by colons. `test_metadata_histories.py` compares the same
histories with a metadata table that Hudi builds, and runs everywhere.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.test_metadata_histories import after_history
from tests.support.hudi import Hudi, find_jar
from tests.support.lock_bridge import compiled

pytestmark = pytest.mark.jvm

JARS = [Path(path) for path in os.environ.get("LAKEHOUSE_HUDI_UTILITIES", "").split(os.pathsep) if path]
SOURCE = Path(__file__).parents[1] / "support" / "MetadataValidator.java"
VALIDATOR = "MetadataValidator"


@pytest.fixture(scope="module")
def validating(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hudi]:
    """Hudi with the validator."""
    if not JARS:
        pytest.skip("missing: the jars of hudi-utilities and jcommander; name them in LAKEHOUSE_HUDI_UTILITIES")
    home, bundle = tmp_path_factory.mktemp("validator"), find_jar()
    hudi = Hudi(bundle, home, {"spark.jars": ",".join(map(str, (bundle, *JARS)))})
    try:
        hudi.load_classes(compiled(home, SOURCE))
        yield hudi
    finally:
        hudi.close()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_validator_of_hudi_passes_after_random_histories(
    kind: str, seed: int, validating: Hudi, tmp_path: Path
) -> None:
    index = ("RECORD_INDEX", "SIMPLE", "BLOOM" if kind == "COPY_ON_WRITE" else "SIMPLE")[seed % 3]
    history = after_history(tmp_path / "t", kind, index, seed)
    # A commit compacts the metadata table before it is complete, so its instant is older than the compaction's. Until
    # the next commit the validator reads the record index without that commit, on tables of Hudi too.
    history.write()
    assert validating.call(VALIDATOR, str(tmp_path / "t")) == "", history.actions


def test_validator_of_hudi_finds_a_file_that_the_metadata_table_lacks(validating: Hudi, tmp_path: Path) -> None:
    after_history(tmp_path / "t", "COPY_ON_WRITE", "RECORD_INDEX", 0)
    newest = max((tmp_path / "t" / "a").glob("*.parquet"), key=lambda path: path.name[-25:])
    shutil.copy(newest, newest.with_name(f"00000000-0000-0000-0000-000000000000-0_{newest.name.partition('_')[2]}"))
    assert "in file system only" in validating.call(VALIDATOR, str(tmp_path / "t"))
