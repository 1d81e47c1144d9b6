"""The matrix of versions: pins, results and the page agree with pyproject.toml, and the runner reports each cell."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from docs.generators.compatibility import PAGE, compatibility_files, matrix_block
from tests.matrix import environments, results, runner
from tests.matrix.__main__ import main
from tests.matrix.cells import AIRFLOWS, CELLS, LOWEST, PYTHONS, ROOT, SPARKS, Cell, missing_files
from tests.matrix.pins import EXTRAS, load_project, name_of, pins_of, requirements
from tests.matrix.results import FAILED, NOT_RUN, PASSED, UNSUPPORTED, CellResult

PROJECT = load_project()
CELL = Cell(name="fake", part="spark", version="9.9", python="3.11", pins="pyproject.toml", suites=())


def requirement_of(name: str, extra: str) -> Requirement:
    (line,) = [line for line in requirements(PROJECT, (extra,)) if name_of(line) == name]
    return Requirement(line)


def test_lowest_environment_has_the_lower_bound_of_each_requirement() -> None:
    pins = pins_of(ROOT / LOWEST.pins)
    bounds: dict[str, list[Requirement]] = {}
    for needed in map(Requirement, requirements(PROJECT, EXTRAS)):
        if needed.marker is None or needed.marker.evaluate({"python_version": LOWEST.python}):
            bounds.setdefault(name_of(str(needed)), []).append(needed)
    for name, wanted in bounds.items():
        lower = max(Version(bound.version) for one in wanted for bound in one.specifier if bound.operator == ">=")
        # Some bounds name a series whose first release has a patch number: psycopg 3.2 begins with 3.2.1.
        pinned = Version(pins[name])
        assert pinned == lower or pinned.release[: len(lower.release)] == lower.release, (
            f"{name}: {pinned}, not {lower}"
        )
        assert all(one.specifier.contains(pinned) for one in wanted)


@pytest.mark.parametrize("spark", SPARKS)
def test_pins_of_a_spark_version_are_admitted_by_the_wheel(spark: str) -> None:
    pins = pins_of(ROOT / f"tests/matrix/spark-{spark}.txt")
    assert pins["pyspark"].startswith(f"{spark}.")
    for line in requirements(PROJECT, ("spark",)):
        assert Requirement(line).specifier.contains(pins[name_of(line)]), line


def test_bounds_admit_exactly_the_versions_of_the_matrix() -> None:
    pyspark, airflow = requirement_of("pyspark", "spark"), Requirement(PROJECT["optional-dependencies"]["airflow"][0])
    for versions, wanted in ((SPARKS, pyspark), (AIRFLOWS, airflow)):
        assert all(wanted.specifier.contains(f"{version}.9") for version in versions)
        limits = {bound.operator: Version(bound.version) for bound in wanted.specifier}
        assert limits[">="] == Version(versions[0])
        major, minor = Version(versions[-1]).release
        assert limits["<"] == Version(f"{major}.{minor + 1}")
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_cells_have_distinct_names_and_each_version_has_one() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    assert {(cell.version, cell.python) for cell in CELLS if cell.part == "spark"} == {
        (spark, python) for spark in SPARKS for python in PYTHONS
    }
    assert {cell.version for cell in CELLS if cell.part == "airflow"} == set(AIRFLOWS)
    assert {cell.part for cell in CELLS if cell.in_ci} == {"spark", "airflow", "lowest"}
    assert [missing_files(cell) for cell in CELLS if missing_files(cell)] == []


def test_page_shows_the_published_results() -> None:
    assert compatibility_files() == {PAGE: PAGE.read_text(encoding="utf-8")}
    assert set(results.published()) <= {cell.name for cell in CELLS}


def test_block_shows_versions_of_passed_cells_and_reasons_of_others() -> None:
    spark, airflow = f"spark-{SPARKS[0]}-python-{PYTHONS[0]}", f"airflow-{AIRFLOWS[0]}-python-3.11"
    block = matrix_block(
        {
            spark: CellResult(name=spark, outcome=PASSED, date="2026-11-29", versions={"pyspark": "3.5.9"}),
            airflow: CellResult(name=airflow, outcome=FAILED, reason="pytest ended with 1"),
        }
    )
    assert "| Spark 3.5 | passed on 2026-11-29: pyspark 3.5.9 | not run | not run |" in block
    assert "| Airflow 2.11 | failed |" in block
    assert f"* `{airflow}` did not pass: pytest ended with 1" in block
    unsupported = matrix_block({spark: CellResult(name=spark, outcome=UNSUPPORTED, reason="no wheel")})
    assert f"* `{spark}` cannot work: no wheel" in unsupported


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the results of a run, without any environment."""
    monkeypatch.setattr(results, "RUNS", tmp_path)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(environments, "build_wheel", lambda: tmp_path / "fake.whl")
    monkeypatch.setattr(environments, "sources_print", lambda cell: "sources")
    monkeypatch.setattr(environments, "installed_versions", lambda python: {"pyspark": "9.9.1", "python": "3.11.7"})
    monkeypatch.setattr(environments, "prepare", lambda cell, wheel, log: Path("/bin/false"))
    return tmp_path


def run(cell: Cell = CELL, **options: Any) -> CellResult:
    (result,) = runner.run_cells([cell], runner.Options(**options))
    return result


def print_tests(monkeypatch: pytest.MonkeyPatch, text: str, code: int) -> list[str]:
    calls: list[str] = []

    def run_tests(cell: Cell, python: Path, log: Path, suites: Sequence[str]) -> int:
        calls.append(cell.name)
        log.write_text(text, encoding="utf-8")
        return code

    monkeypatch.setattr(runner, "_run_tests", run_tests)
    return calls


def test_runner_stores_a_result_that_a_later_run_reuses(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = print_tests(monkeypatch, "=== 3 passed, 1 skipped in 2.1s ===\n", 0)
    result = run()
    assert (result.outcome, result.counts) == (PASSED, {"passed": 3, "skipped": 1})
    assert result.versions == {"pyspark": "9.9.1", "python": "3.11.7"}
    assert json.loads((place / "fake.json").read_text())["outcome"] == PASSED
    assert run().outcome == PASSED and calls == ["fake"]
    run(again=True)
    assert calls == ["fake", "fake"]
    monkeypatch.setattr(environments, "sources_print", lambda cell: "changed")
    run()
    assert len(calls) == 3


def test_runner_reports_failed_tests_with_their_errors(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_tests(monkeypatch, "FAILED tests/a.py::test_b - KeyError: 'x'\n1 failed, 2 passed in 3.2s\n", 1)
    result = run()
    assert (result.outcome, result.failures) == (FAILED, ("tests/a.py::test_b",))
    assert result.reason == "KeyError: 'x'"
    assert "[1 of 1] fake: failed in 0 s: 1 failed, 2 passed" in capsys.readouterr().out
    assert runner.summary([result], 3.0) == "2 passed, 1 failed in 3.0s"


def test_run_without_a_passed_test_fails(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    print_tests(monkeypatch, "2 skipped in 0.10s\n", 0)
    assert run().outcome == FAILED


def test_missing_python_fails_only_the_cells_that_ci_runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(cell: Cell, wheel: Path, log: Path) -> Path:
        raise environments.MissingPythonError("no Python 3.11")

    monkeypatch.setattr(environments, "prepare", refuse)
    in_ci = replace(CELL, in_ci=True)
    outcomes = [run(CELL), run(CELL, strict=True), run(in_ci), run(in_ci, strict=True)]
    assert [result.outcome for result in outcomes] == [NOT_RUN, NOT_RUN, NOT_RUN, FAILED]
    assert outcomes[-1].reason == "no Python 3.11"


def test_published_results_replace_those_of_the_same_cells(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    first, second = replace(CELL, name="first"), replace(CELL, name="second", unsupported="no wheel")
    results.publish([CellResult(name="first", outcome=FAILED), CellResult(name="gone", outcome=PASSED)], [first], path)
    results.publish([CellResult(name="first", outcome=PASSED, date="2026-11-29")], [first, second], path)
    shown = results.published(path)
    assert (shown["first"].outcome, shown["second"].outcome) == (PASSED, UNSUPPORTED)
    assert list(shown) == ["first", "second"]


def test_list_shows_the_cells_of_a_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--only", "spark-3.5*"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [f"spark-3.5-python-{python}" for python in PYTHONS]
    with pytest.raises(SystemExit):
        main(["list", "--only", "spark-9*"])


def test_interpreter_of_a_version_is_on_the_path_or_missing() -> None:
    assert re.search(r"python", environments.python_of("3.11"))
    with pytest.raises(environments.MissingPythonError, match=r"no Python 3\.2 "):
        environments.python_of("3.2")


def test_versions_are_in_ascending_order() -> None:
    for versions in (PYTHONS, SPARKS, AIRFLOWS):
        assert all(Version(lower) < Version(higher) for lower, higher in pairwise(versions))
