"""The tables of DAGs in the documentation have the DAGs that `lakehouse_dags` creates, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from tests.airflow.test_dags import minimal

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("airflow/dags.md", "airflow/add-to-your-airflow.md")
TWO_LINES = "from lakehouse_airflow import lakehouse_dags\nlakehouse_dags(globals(), specs='tables')\n"
PUBLISHED = f"{minimal('orders')}partition_by: [day]\nservices:\n  publish: {{database: shop, ready: [interval]}}\n"


@pytest.fixture(scope="module")
def created(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the ids of the DAGs of a deployment: a published table, and a spec with an error."""
    folder = tmp_path_factory.mktemp("documented") / "team"
    (folder / "tables").mkdir(parents=True)
    (folder / "house.py").write_text(TWO_LINES, encoding="utf-8")
    (folder / "tables" / "orders.yaml").write_text(PUBLISHED, encoding="utf-8")
    (folder / "tables" / "bad.yaml").write_text("table: bad\n", encoding="utf-8")
    bag = DagBag(folder)
    assert bag.import_errors == {}
    return sorted(bag.dags)


def documented(page: str) -> list[str]:
    """Return the ids in the first column of the table of DAGs; `<name>` stands for a value."""
    (table,) = re.findall(r"^\| DAGs? \|.*\n\|[ -|]*\n((?:\|.*\n)+)", page, re.MULTILINE)
    return re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)


def uncovered(ids: list[str], created: list[str]) -> list[str]:
    """Return the created DAGs that no row describes, and the rows that describe no DAG."""
    literal = [name for name in ids if "<" not in name]
    patterns = [name for name in ids if name not in literal]
    others = [dag for dag in created if dag not in literal]
    matched = {name: [dag for dag in others if _pattern(name).fullmatch(dag)] for name in patterns}
    known = {dag for dags in matched.values() for dag in dags}
    return [
        *(dag for dag in others if dag not in known),
        *(name for name in literal if name not in created),
        *(name for name, dags in matched.items() if not dags),
    ]


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"<\w+>", ".+", re.escape(name)))


@pytest.mark.parametrize("page", PAGES)
def test_table_of_dags_has_each_dag_of_a_deployment(page: str, created: list[str]) -> None:
    ids = documented((DOCS / page).read_text(encoding="utf-8"))
    assert len(ids) == len(set(ids))
    assert uncovered(ids, created) == []


def test_missing_and_invented_rows_are_found(created: list[str]) -> None:
    ids = documented((DOCS / PAGES[0]).read_text(encoding="utf-8"))
    assert uncovered([name for name in ids if name != "lakehouse.actions"], created) == ["lakehouse.actions"]
    assert uncovered([*ids, "lakehouse.cleaner"], created) == ["lakehouse.cleaner"]
    assert uncovered([*ids, "repair.<table>"], created) == ["repair.<table>"]
