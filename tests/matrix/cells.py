"""The cells of the matrix: one environment with one combination of versions each, and the tests that run in it.

This module imports the standard library only, so that pages and tests can read it without the environments.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent
#: The versions that the wheel supports. `pyproject.toml` must allow them.
PYTHONS = ("3.11", "3.12", "3.13")
SPARKS = ("3.5", "4.0", "4.1")
AIRFLOWS = ("2.11", "3.0", "3.1", "3.2", "3.3")

SPARK_SUITE = "tests/matrix/test_spark_matrix.py"
AIRFLOW_SUITE = "tests/matrix/test_airflow_matrix.py"
#: Codecs, planners and write histories: those parts that depend on the versions of NumPy and PyArrow.
PROPERTY_SAMPLE = tuple(
    f"tests/property/test_{name}.py"
    for name in ("avro_schema", "deduplicate", "json_rows", "keys", "mor_histories", "schema_evolution")
)
#: The unit tests of codecs and files, 2,000 in a minute or two: they find almost all differences between versions.
_UNITS = tuple(f"tests/unit/core/{name}" for name in ("format", "rows", "files", "index", "metadata", "state"))
LOWEST_SUITES = (SPARK_SUITE, *_UNITS, *PROPERTY_SAMPLE)
LOWEST_MORE = ("tests/unit", "tests/golden", "tests/property/test_write_histories.py", "tests/interop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One combination of versions.

    Attributes:
        name: The name of the environment, the log and the result.
        part: `spark`, `airflow` or `lowest`.
        version: The minor version of Spark or Airflow.
        python: The minor version of Python.
        pins: The file with the pinned versions, below the root of the project.
        suites: The tests that run in CI and by `make matrix`.
        more: Tests that only `make matrix` adds.
        in_ci: True for the corners that CI runs. There a missing Python fails the cell.
        unsupported: The reason why the combination cannot work; empty if it can.
    """

    name: str
    part: str
    version: str
    python: str
    pins: str
    suites: tuple[str, ...]
    more: tuple[str, ...] = ()
    in_ci: bool = False
    unsupported: str = ""


#: CI runs these beside its ordinary stages, which have Python 3.11 with the newest Spark and Airflow.
_SPARK_CORNERS = (("3.5", "3.12"), ("4.0", "3.13"), ("4.1", "3.13"))
_AIRFLOW_CORNERS = ("2.11", "3.1")


def spark_cells() -> tuple[Cell, ...]:
    """Return a cell for each version of Spark with each version of Python."""
    return tuple(
        Cell(
            name=f"spark-{spark}-python-{python}",
            part="spark",
            version=spark,
            python=python,
            pins=f"tests/matrix/spark-{spark}.txt",
            suites=(SPARK_SUITE,),
            in_ci=(spark, python) in _SPARK_CORNERS,
        )
        for spark in SPARKS
        for python in PYTHONS
    )


def airflow_cells() -> tuple[Cell, ...]:
    """Return a cell for each version of Airflow. Python 3.11 is the one that all of them support."""
    return tuple(
        Cell(
            name=f"airflow-{airflow}-python-3.11",
            part="airflow",
            version=airflow,
            python="3.11",
            pins=f"tests/matrix/airflow-{airflow}.txt",
            suites=(AIRFLOW_SUITE,),
            in_ci=airflow in _AIRFLOW_CORNERS,
        )
        for airflow in AIRFLOWS
    )


LOWEST = Cell(
    name="lowest",
    part="lowest",
    version=SPARKS[0],
    python=PYTHONS[0],
    pins="tests/matrix/lowest.txt",
    suites=LOWEST_SUITES,
    more=LOWEST_MORE,
    in_ci=True,
)
CELLS: tuple[Cell, ...] = (LOWEST, *spark_cells(), *airflow_cells())


def missing_files(cell: Cell) -> tuple[str, ...]:
    """Return the files of the cell that do not exist: pins and suites."""
    return tuple(path for path in (cell.pins, *cell.suites) if not (ROOT / path).exists())
