"""Upgrade and downgrade by the page of a table, in a complete Airflow: dialog, plan, run, result, and a refusal."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any
from zipfile import ZipFile

import pytest

from tests.support.browser import Page, browser
from tests.support.shared import fixtures
from tests.support.standalone import Standalone, standalone

ROOT = Path(__file__).resolve().parents[2]
SPARK_PYTHON = ROOT / ".venv" / "bin" / "python"
TABLE = "ops.orders"
#: A table of version 6 that Hudi 0.15 wrote: merge-on-read, with an archived timeline.
WRITTEN_BY_HUDI = "hudi_v6/mor_v6_h015_archived"
STATE = """
import json, sys
from lakehouse import load_catalog

with load_catalog() as catalog:
    table = catalog.load_table(sys.argv[1])
    rows = sorted(table.scan(columns=["id", "v"]).to_arrow().to_pylist(), key=str)
    print(json.dumps([table.config.version, rows, len(table.archived()), len(table.validate(deep=True).corrupt)]))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Register the table, and return the environment of Airflow's processes."""
    if not SPARK_PYTHON.exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    place = tmp_path_factory.mktemp("lake")
    (place / "dags").mkdir()
    (place / "dags" / "actions.py").symlink_to(ROOT / "dags" / "actions.py")
    variables = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(place / "dags"),
        "LAKEHOUSE_CATALOG": f"sqlite:///{place}/catalog.db",
        "LAKEHOUSE_SPARK_HOME": str(ROOT / ".venv"),
    }
    with ZipFile(fixtures(f"{WRITTEN_BY_HUDI}.zip")) as packed:
        packed.extractall(place)
    location = str(place / WRITTEN_BY_HUDI.rpartition("/")[2])
    spark_python(variables, "-m", "lakehouse", "table", "register", "--table", TABLE, "--location", location)
    return variables


@pytest.fixture(scope="module")
def airflow(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Run Airflow with the DAG of actions."""
    with standalone(tmp_path_factory.mktemp("airflow"), environment) as running:
        running.command("lakehouse", "setup")
        running.until(lambda: "lakehouse.actions" in {d["dag_id"] for d in running.call("dags")["dags"]}, "the DAG")
        yield running


@pytest.fixture(scope="module")
def tab(airflow: Standalone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A browser in which a user is logged in."""
    with browser(tmp_path_factory.mktemp("browser")) as page:
        page.log_in(place_of(airflow), airflow.token())
        yield page


def spark_python(environment: dict[str, str], *words: str) -> str:
    """Run Python in Spark's environment; return its output."""
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run([SPARK_PYTHON, *words], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def state(environment: dict[str, str]) -> list[Any]:
    """Return the version of the table, its rows, the number of archived actions, and of damages."""
    values: list[Any] = json.loads(spark_python(environment, "-c", dedent(STATE), TABLE))
    return values


def place_of(airflow: Standalone) -> str:
    return f"http://127.0.0.1:{airflow.port}"


def planned(airflow: Standalone, tab: Page, action: str, version: str) -> str:
    """Open the dialog of the page, and return what it shows about the change."""
    tab.open(f"{place_of(airflow)}/plugin/lakehouse/table/{TABLE}")
    tab.click(action, role="button")
    tab.fill("New table version", version)
    tab.click("Show what would happen")
    return shown(airflow, tab, "What would happen", "Step 1: ")


def shown(airflow: Standalone, tab: Page, *texts: str) -> str:
    """Wait until the page shows all texts, and return its text; a table is read by a process that starts first."""
    airflow.until(lambda: all(text in tab.text() for text in texts), lambda: f"{texts} in {tab.text()}")
    return tab.text()


def confirmed(airflow: Standalone, tab: Page) -> Any:
    """Confirm the plan in the dialog, wait until the run has ended, and return the record of the action."""
    tab.click("Confirm")
    shown(airflow, tab, "Recorded as action", "Open the DAG run")

    def ended() -> Any:
        path = f"/lakehouse/api/v1/actions?table={TABLE}&limit=1"
        (action,) = tab_json(tab, path)["actions"]
        return action if action["state"] in ("done", "failed") else None

    return airflow.until(ended, "the action ends")


def tab_json(tab: Page, path: str) -> Any:
    """Return the answer of the API to the user of the browser."""
    return json.loads(tab.run(f"fetch({json.dumps(path)}).then((answer) => answer.text())"))


def test_versions_are_changed_by_the_page_and_a_plan_of_another_version_is_refused(
    airflow: Standalone, tab: Page, environment: dict[str, str]
) -> None:
    _, rows, archived, _ = before = state(environment)
    assert before == [6, rows, archived, 0] and rows and archived
    text = planned(airflow, tab, "Upgrade", "9")
    assert "The table changes from version 6 to 9." in text
    done = confirmed(airflow, tab)
    assert (done["action"], done["state"], done["parameters"]) == ("upgrade", "done", {"to": "9", "from": "6"})
    assert state(environment) == [9, rows, archived, 0]
    run = airflow.call(f"dags/lakehouse.actions/dagRuns/{done['dag_run']}")
    assert (run["state"], run["conf"]) == ("success", {"action_id": done["id"]})

    # The plan is for version 9, but another user changes the table before this one confirms.
    assert "The table changes from version 9 to 6." in planned(airflow, tab, "Downgrade", "6")
    spark_python(environment, "-m", "lakehouse", "table", "downgrade", "--table", TABLE, "--to", "8")
    refused = confirmed(airflow, tab)
    assert refused["state"] == "failed"
    assert "has table version 8, but the plan was made for version 9" in json.dumps(refused["result"])
    assert state(environment) == [8, rows, archived, 0]
    tab.open(f"{place_of(airflow)}/plugin/lakehouse/table/{TABLE}?tab=activity")
    shown(airflow, tab, "the plan was made for version 9")
    run = airflow.call(f"dags/lakehouse.actions/dagRuns/{refused['dag_run']}")
    assert run["state"] == "failed"

    assert "The table changes from version 8 to 6." in planned(airflow, tab, "Downgrade", "6")
    done = confirmed(airflow, tab)
    assert (done["state"], state(environment)) == ("done", [6, rows, archived, 0])
    tab.open(f"{place_of(airflow)}/plugin/lakehouse/table/{TABLE}?tab=activity")
    shown(airflow, tab, "Downgrade", "Upgrade", "done", "failed")
