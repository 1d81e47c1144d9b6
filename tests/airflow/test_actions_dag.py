"""The DAG `lakehouse.actions` does a recorded action in Spark's environment, and the catalog has its result."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from unittest.mock import ANY

import pytest
from airflow.dag_processing.dagbag import DagBag

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import UserError
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.fleet_views.actions import NewAction, read_action, record_action
from lakehouse_airflow import dags_actions
from lakehouse_airflow.dags_actions import action_words

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = ROOT / ".venv"


@pytest.mark.slow
def test_run_does_the_recorded_action_and_stores_its_result(
    tmp_path: Path, database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (SPARK_HOME / "bin" / "python").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    url = f"sqlite:///{tmp_path}/catalog.db"
    monkeypatch.setenv("LAKEHOUSE_CATALOG", url)
    monkeypatch.setenv("LAKEHOUSE_SPARK_HOME", str(SPARK_HOME))
    command = [SPARK_HOME / "bin" / "python", "-m", "tests.support.lake", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=dict(os.environ), check=True, capture_output=True)
    catalog = Database(url)
    new = NewAction(table="sales.orders", action="savepoint", parameters={"comment": "from a page"}, author="oleg")
    with catalog.session() as session:
        number = record_action(session, new, SystemClock().now_ms())
    # Airflow's test run chooses its id itself; only the run of the action may do it.
    monkeypatch.setattr(dags_actions, "dag_run_id", lambda action: ANY)
    run = DagBag(ROOT / "dags").dags["lakehouse.actions"].test(run_conf={"action_id": number})
    assert [instance.state for instance in run.get_task_instances()] == ["success"]
    with catalog.reading() as session:
        done = read_action(session, number)
    # The newest commit has a savepoint already, which the fixture made.
    assert (done.state, done.result["savepoint"]) == ("done", None)
    assert "savepoint" in done.result["reason"]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"action_id": 17}, ["action", "run", "--id=17", "--output=json"]),
        (
            {"action_id": None, "table": "a.b", "action": "publish", "parameters": {"partitions": ["p", "q"]}},
            [
                *("action", "run", "--table=a.b", "--action=publish"),
                *("--set=partitions=p", "--set=partitions=q", "--output=json"),
            ],
        ),
    ],
)
def test_words_of_a_run_are_those_of_its_params(params: dict[str, object], words: list[str]) -> None:
    assert action_words(params) == words


def test_params_without_an_action_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="contain no action; set table and action, or action_id"):
        action_words({"action_id": None, "table": "a.b", "action": None, "parameters": None})
