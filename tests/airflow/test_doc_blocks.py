"""DAG files of pages about Airflow are parsed by Airflow, and their other blocks run in Airflow's environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from tests.support.doc_blocks import Page, PageRun, pages, read_page


def parse_dags(file: Path) -> None:
    """Parse a DAG file; raise AssertionError if it has an import error or no DAG."""
    bag = DagBag(file)
    assert not bag.import_errors, "\n".join(bag.import_errors.values())
    assert bag.dags, f"{file}: no DAG"


@pytest.mark.parametrize("page", pages("airflow"), ids=lambda page: page.path)
def test_code_blocks_of_a_page_about_airflow_run_in_order(
    page: Page, database: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PageRun(tmp_path, monkeypatch, run_dag=parse_dags)
    run.run(page)
    assert set(run.executed) >= page.runnable
    assert page.runnable


@pytest.mark.parametrize(
    ("code", "problem"),
    [("from airflow.sdk import no_such_dag", "no_such_dag"), ("NUMBER = 1", "no DAG")],
    ids=["import-error", "no-dag"],
)
def test_a_dag_block_with_an_error_or_without_a_dag_fails_the_page(
    code: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = read_page("x.md", f"<!-- blocks run in: airflow -->\n```python\n{code}\n```\n")
    with pytest.raises(AssertionError, match=problem):
        PageRun(tmp_path, monkeypatch, run_dag=parse_dags).run(page)
