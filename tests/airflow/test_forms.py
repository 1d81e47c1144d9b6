"""The trigger forms of all DAGs: titles, sentences, optional fields, choices, and wrong values."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.sdk.definitions.param import Param
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from lakehouse.errors import UserError
from lakehouse.spec.table.services import BY_PARTITION
from lakehouse_airflow.forms import check_conf, service_form
from lakehouse_airflow.services import due_batches

ROOT = Path(__file__).resolve().parents[2]
INTERVAL = {"interval_start", "interval_end"}


@pytest.fixture(scope="module")
def dags() -> dict[str, DAG]:
    bag = DagBag(ROOT / "dags")
    assert bag.import_errors == {}
    return dict(bag.dags)


def params_of(dag: DAG) -> dict[str, Param]:
    return {name: dag.params.get_param(name) for name in dag.params}


def test_every_field_is_optional_and_has_a_title_and_a_sentence_with_an_example(dags: dict[str, DAG]) -> None:
    fields = [(dag_id, name, param) for dag_id, dag in dags.items() for name, param in params_of(dag).items()]
    assert {name for _, name, _ in fields} > {"tables", "partitions", "force", "dry_run", "options", *INTERVAL}
    for dag_id, name, param in fields:
        where = f"{dag_id}: {name}"
        # The form marks a field as required unless its type is a list with "null".
        assert "null" in param.schema["type"] and isinstance(param.schema["type"], list), where
        assert param.schema["title"] and param.schema["title"] != name, where
        assert re.fullmatch(r"[A-Z].*[.]", param.description or ""), where
        # The form shows a description as it is, without Markdown.
        assert "`" not in param.description and "*" not in param.description, where
        if name not in ("dry_run",):
            assert "example" in param.description, where


def test_forms_survive_serialization_with_their_values(dags: dict[str, DAG]) -> None:
    for dag_id, dag in dags.items():
        stored = DagSerialization.from_dict(DagSerialization.to_dict(dag)).params
        assert set(stored) == set(dag.params), dag_id
        for name, param in params_of(dag).items():
            copy = stored.get_param(name)
            assert (copy.value, copy.schema, copy.description) == (param.value, param.schema, param.description)


def test_empty_form_and_form_of_nulls_are_valid(dags: dict[str, DAG]) -> None:
    for dag in dags.values():
        for param in params_of(dag).values():
            assert param.resolve() == param.value
            assert param.resolve(None) is None


@pytest.mark.parametrize(
    ("dag_id", "name", "value"),
    [
        ("services.clustering", "tables", "sales.orders"),
        ("services.clustering", "tables", [1]),
        ("services.clustering", "dry_run", "yes"),
        ("services.clean", "options", ["a"]),
        ("ingest.ride_trips", "full_refresh", "true"),
    ],
)
def test_value_of_another_type_is_refused(dags: dict[str, DAG], dag_id: str, name: str, value: Any) -> None:
    with pytest.raises(ParamValidationError):
        params_of(dags[dag_id])[name].resolve(value)


def test_tables_are_choices_and_accept_other_names() -> None:
    tables = service_form("clean", ["sales.orders", "ride_trips"])["tables"]
    assert tables.schema["examples"] == ["default.ride_trips", "sales.orders"]
    assert tables.resolve(["sales.of_the_catalog"]) == ["sales.of_the_catalog"]
    assert "examples" not in service_form("clean")["tables"].schema


def test_data_interval_is_asked_only_where_the_one_of_the_airflow_dialog_has_no_effect(dags: dict[str, DAG]) -> None:
    # Airflow's dialog has "Data Interval" itself, and an ingestion reads it. A second one would contradict it.
    for dag_id, dag in dags.items():
        limited = dag_id.startswith("publish.") or dag_id.removeprefix("services.") in BY_PARTITION
        assert (set(dag.params) >= INTERVAL) == limited, dag_id
        assert INTERVAL.isdisjoint(dag.params) or limited, dag_id
        sections = {param.schema.get("section", "").lower() for param in params_of(dag).values()}
        assert "data interval" not in sections, dag_id
        for name in INTERVAL & set(dag.params):
            assert params_of(dag)[name].schema["section"] == "Limit to days"
    for dag_id in ("services.clean", "services.archive", "services.ttl", "services.schedule"):
        assert "partitions" not in dags[dag_id].params


def test_every_task_of_lakehouse_documents_itself_and_batches_show_their_tables(dags: dict[str, DAG]) -> None:
    tasks = [task for name, dag in dags.items() if name.startswith(("ingest.", "services.")) for task in dag.tasks]
    assert {task.task_id for task in tasks} == {"ingest", "decide", "due", "run", "send_alarms"}
    for task in tasks:
        assert "log" in (task.doc_md or ""), task.task_id
    run = dags["services.clean"].get_task("run")
    template = dags["services.clean"].get_template_env().from_string(run.partial_kwargs["map_index_template"])
    assert template.render(task=SimpleNamespace(table=["a.b", "a.c"])) == "a.b, a.c"
    assert len(template.render(task=SimpleNamespace(table=["n" * 20] * 40))) <= 250


def test_params_of_a_run_do_not_reach_the_form_of_another_dag() -> None:
    one, other = service_form("clean"), service_form("clean")
    one["tables"].resolve(["a.b"])
    assert other["tables"].value is None


def test_misspelt_param_in_the_conf_of_a_run_is_refused_by_name(dags: dict[str, DAG]) -> None:
    context = {"dag_run": SimpleNamespace(conf={"tabels": ["a.b"]}), "dag": dags["services.clean"]}
    with pytest.raises(UserError, match=r"'tabels', which is not a param of this DAG\. Did you mean 'tables'\?"):
        check_conf(context)
    check_conf({"dag_run": SimpleNamespace(conf={"ticket": "A-1"}), "dag": dags["services.clean"]})


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"partitions": ["2026-03-01"]}, "clean works on whole tables"),
        ({"interval_start": "2026-03-01", "interval_end": "2026-03-02"}, "clean works on whole tables"),
        ({"interval_start": "2026-03-01"}, "give both, or none"),
        ({"tables": 7}, "tables=7"),
    ],
)
def test_wrong_value_fails_the_first_task_by_name_without_retry(
    dags: dict[str, DAG], params: dict[str, Any], words: str
) -> None:
    with pytest.raises(AirflowFailException, match=words):
        due_batches.function("clean", params=params, dag=dags["services.clean"])
