"""`lakehouse-tables[arrow]` works in a fresh virtual environment without pyspark and without Java."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
JOURNEY = ROOT / "tests" / "support" / "arrow_journey.py"
#: The files that pip needs to build the project. A copy keeps build output out of the source tree.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "lakehouse", "plugins")
NO_INDEX = ("No matching distribution", "NewConnectionError", "ConnectTimeoutError", "ProxyError", "ReadTimeoutError")


def run(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command with exactly these environment variables, and return its result."""
    return subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def arrow_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install `lakehouse-tables[arrow]` in a new virtual environment, and return its Python."""
    folder = tmp_path_factory.mktemp("arrow")
    sources = folder / "sources"
    sources.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, sources / name)
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    constraints = str(ROOT / "constraints-spark.txt")
    # Few of the installed modules are imported, so compiling all of them would take longer.
    words = ["pip", "install", "-q", "--no-compile", "--retries", "1", "-c", constraints, f"{sources}[arrow]"]
    done = run([str(python), "-m", *words], environment)
    if done.returncode and any(sign in done.stderr for sign in NO_INDEX):
        pytest.skip("missing: a package index that pip reaches")
    assert done.returncode == 0, done.stderr
    return python


@pytest.fixture
def bare_environment(tmp_path: Path) -> dict[str, str]:
    """Return environment variables that hide Java and the source tree."""
    empty = tmp_path / "bin"
    empty.mkdir()
    return {"PATH": str(empty), "TZ": "UTC"}


def test_table_operations_run_without_pyspark_and_java(
    arrow_python: Path, bare_environment: dict[str, str], tmp_path: Path
) -> None:
    done = run([str(arrow_python), "-P", str(JOURNEY), str(tmp_path / "tables")], bare_environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["create", "upsert", "scan", "compact", "clean", "cluster"]


def test_to_spark_refuses_an_object_that_is_no_session(
    arrow_python: Path, bare_environment: dict[str, str], tmp_path: Path
) -> None:
    program = (
        "from lakehouse import Table\n"
        f"table = Table.create({str(tmp_path / 't')!r}, name='t', record_key='id')\n"
        "try:\n    table.scan().to_spark(object())\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = run([str(arrow_python), "-P", "-c", program], bare_environment)
    assert done.stdout.startswith("UserError expected a session of pyspark, not object"), done.stderr
