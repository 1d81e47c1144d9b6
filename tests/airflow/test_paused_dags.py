"""Which DAGs start paused: by the argument `paused`, by the variable, and in the DAG files of this project."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from lakehouse.errors import UserError
from lakehouse_airflow.paused_dags import VARIABLE, Paused, creation_state, paused_dags
from tests.airflow.test_dags import minimal
from tests.airflow.test_user_dags import PUBLISHED, MakeFolder, call, make_folder

__all__ = ["make_folder"]
ROOT = Path(__file__).resolve().parents[2]
INGEST, SCHEDULE = "ingest.sales.orders", "services.schedule"


@pytest.mark.parametrize(
    ("paused", "states"),
    [
        (True, (True, True)),
        ("TRUE", (True, True)),
        (False, (False, False)),
        ([], (False, False)),
        ("ingest.*, publish.*", (True, False)),
        (["ingest.*"], (True, False)),
        ("*, !services.schedule", (True, False)),
        (["!services.schedule", "*"], (True, True)),
        ("!services.schedule", (None, False)),
        ({"ingest.sales.orders"}, (True, False)),
        ("", (None, None)),
        (None, (None, None)),
    ],
)
def test_decision_of_ingestion_and_scheduler(paused: Paused | None, states: tuple[bool | None, ...]) -> None:
    decision = paused_dags(paused, {})
    assert (decision.starts_paused(INGEST), decision.starts_paused(SCHEDULE)) == states


@pytest.mark.parametrize(
    ("paused", "words"),
    [
        ("maybe", "'maybe' matches no DAG of lakehouse; ids begin with ingest., publish., services., lakehouse."),
        ("servces.*", "Did you mean 'services'?"),
        (["services.compction"], "'services.compction' matches no DAG. Did you mean 'services.compaction'?"),
        ("!lakehouse.doctr", "Did you mean 'lakehouse.doctor'?"),
        ("true, false", "'true' matches no DAG of lakehouse"),
        (["ingest."], "'ingest.' matches no DAG of lakehouse"),
        ([1], "1 is not an id or pattern of DAGs"),
        (1, "paused=1 has the type int"),
    ],
)
def test_value_that_no_dag_can_match_is_refused_with_the_way_out(paused: Paused, words: str) -> None:
    with pytest.raises(UserError) as refused:
        paused_dags(paused, {})
    assert words in refused.value.message


def test_error_of_the_variable_names_it() -> None:
    with pytest.raises(UserError, match=rf"{VARIABLE}: 'yes' matches no DAG"):
        creation_state(SCHEDULE, {VARIABLE: "yes"})


def test_argument_sets_the_state_of_each_dag_and_goes_before_the_variable(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "true")
    folder = make_folder(call("paused=['ingest.*']"), orders=PUBLISHED, bad="table: bad\nlocation: x\nrecord_kye: id\n")
    states = {name: dag.is_paused_upon_creation for name, dag in DagBag(folder).dags.items()}
    assert {name for name, paused in states.items() if paused} == {INGEST}
    assert None not in states.values()
    states = {name: dag.is_paused_upon_creation for name, dag in DagBag(make_folder(call("paused=True"))).dags.items()}
    assert {name for name, paused in states.items() if not paused} == {"spec_errors.team.house"}


def test_wrong_argument_is_an_import_error_of_the_file(make_folder: MakeFolder) -> None:
    bag = DagBag(make_folder(call("paused='services.scedule'"), one=minimal("one")))
    (error,) = bag.import_errors.values()
    assert "Did you mean 'services.schedule'?" in error


def test_dag_files_of_the_project_follow_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    usual = {name: dag.is_paused_upon_creation for name, dag in DagBag(ROOT / "dags").dags.items()}
    assert {name for name, paused in usual.items() if paused is not None} == {"lakehouse.actions"}
    monkeypatch.setenv(VARIABLE, "ingest.*, publish.*")
    bag = DagBag(ROOT / "dags")
    ours = {name: dag.is_paused_upon_creation for name, dag in bag.dags.items() if "lakehouse" in dag.tags}
    assert {paused for name, paused in ours.items() if name.startswith(("ingest.", "publish."))} == {True}
    assert {paused for name, paused in ours.items() if name.startswith(("services.", "lakehouse."))} == {False}
