"""`lakehouse_dags` in a user's own DAG folder: the DAGs of two lines, their arguments, and wrong specs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

from lakehouse.spec.table.services import SERVICE_SPECS, SERVICES
from lakehouse_airflow.job_environment import SYNC, spec_variables
from tests.airflow.test_dags import ORDERS, minimal, parsed

PUBLISHED = f"{ORDERS}partition_by: [day]\nservices:\n  publish: {{database: shop, ready: [interval]}}\n"
TWO_LINES = "from lakehouse_airflow import lakehouse_dags\nlakehouse_dags(globals(), specs='tables')\n"
ERROR_LINES = "from lakehouse_airflow import lakehouse_dag_errors\nlakehouse_dag_errors(globals(), specs='tables')\n"
SERVICE_DAGS = {
    "lakehouse.doctor",
    "lakehouse.actions",
    "services.schedule",
    *(f"services.{name}" for name in SERVICES),
}
PLATFORM = ("lakehouse.doctor", "lakehouse.actions")
MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Return a function that makes a DAG folder with a file of DAGs and with specs by file name."""

    def make(text: str = TWO_LINES, **specs: str) -> Path:
        folder = tmp_path / "team"
        (folder / "tables").mkdir(parents=True, exist_ok=True)
        (folder / "house.py").write_text(text, encoding="utf-8")
        for name, spec in specs.items():
            (folder / "tables" / f"{name}.yaml").write_text(spec, encoding="utf-8")
        return folder

    return make


def call(arguments: str) -> str:
    """Return the text of a DAG file that calls `lakehouse_dags` with more arguments."""
    return TWO_LINES.replace("specs='tables'", f"specs='tables', {arguments}")


def test_two_lines_build_ingest_publish_and_service_dags_beside_the_file(
    make_folder: MakeFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(orders=PUBLISHED, manual=minimal("manual"))
    monkeypatch.chdir(tmp_path)
    bag = DagBag(folder)
    assert bag.import_errors == {}
    assert set(bag.dags) == {"ingest.sales.orders", "ingest.manual", "publish.sales.orders", *SERVICE_DAGS}
    assert {Path(dag.fileloc).name for dag in bag.dags.values()} == {"house.py"}
    watched = bag.dags["services.schedule"].timetable.asset_condition
    assert sorted(asset.name for asset in watched.objects) == ["lakehouse.tables", "manual", "sales.orders"]


def test_dag_of_every_service_has_the_documentation_of_its_spec(make_folder: MakeFolder) -> None:
    bag = DagBag(make_folder(call("ingest=False")))
    docs = {spec.name: bag.dags[f"services.{spec.name}"].doc_md for spec in SERVICE_SPECS}
    assert [spec.name for spec in SERVICE_SPECS if not str(docs[spec.name]).startswith(spec.doc)] == []


def test_wrong_spec_keeps_other_dags_and_fails_in_a_dag_of_its_own(make_folder: MakeFolder, database: None) -> None:
    folder = make_folder(good=minimal("good"), bad="table: bad\nlocation: x\nrecord_kye: id\n")
    bag = DagBag(folder)
    assert bag.import_errors == {}
    assert set(bag.dags) == {"ingest.good", "spec_errors.team.house", *SERVICE_DAGS}
    errors = bag.dags["spec_errors.team.house"]
    assert "bad.yaml:3: unknown name 'record_kye'" in str(errors.doc_md)
    assert (errors.is_paused_upon_creation, errors.tags) == (False, {"lakehouse", "broken"})
    (check,) = errors.tasks
    with pytest.raises(Exception, match="unknown name 'record_kye'"):
        check.python_callable(*check.op_args)
    (folder / "tables" / "bad.yaml").write_text(minimal("bad"))
    check.python_callable(*check.op_args)
    assert set(DagBag(folder).dags) == {"ingest.good", "ingest.bad", *SERVICE_DAGS}


def test_spec_errors_file_is_an_import_error_until_the_spec_is_corrected(make_folder: MakeFolder) -> None:
    folder = make_folder(good=minimal("good"), bad="- nothing")
    (folder / "house_errors.py").write_text(ERROR_LINES)
    bag = DagBag(folder)
    assert "ingest.good" in bag.dags
    (shown,) = bag.import_errors.items()
    assert Path(shown[0]).name == "house_errors.py"
    assert "bad.yaml:1:" in shown[1]
    (folder / "tables" / "bad.yaml").unlink()
    assert DagBag(folder).import_errors == {}


def test_services_are_chosen_by_name_or_with_a_schedule(make_folder: MakeFolder) -> None:
    bag = DagBag(make_folder(call("services=['clean', 'ttl'], ingest=False"), one=minimal("one")))
    assert set(bag.dags) == {"services.clean", "services.ttl", "services.schedule", *PLATFORM}
    decide = bag.dags["services.schedule"].get_task("decide")
    assert list(decide.op_args[0])[-4:] == ["--service", "clean", "--service", "ttl"]
    bag = DagBag(make_folder(call("services={'clean': '0 5 * * *'}, doctor=False, actions=False")))
    assert set(bag.dags) == {"ingest.one", "services.clean"}
    assert bag.dags["services.clean"].timetable.expression == "0 5 * * *"
    assert set(DagBag(make_folder(call("services=()"))).dags) == {"ingest.one"}
    assert set(DagBag(make_folder(call("services=(), doctor=True"))).dags) == {"ingest.one", "lakehouse.doctor"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("services=['claen']", "unknown service 'claen'"),
        ("services='clean'", "services='clean' is a string"),
        ("pools={'lakehouse_service': 'etl'}", "no task uses the pool 'lakehouse_service'"),
    ],
)
def test_wrong_argument_is_an_import_error(make_folder: MakeFolder, arguments: str, words: str) -> None:
    bag = DagBag(make_folder(call(arguments), one=minimal("one")))
    assert bag.dags == {}
    assert [words in text for text in bag.import_errors.values()] == [True]


def test_missing_folder_of_specs_is_an_import_error_with_its_path(make_folder: MakeFolder, tmp_path: Path) -> None:
    (shown,) = DagBag(make_folder(TWO_LINES.replace("'tables'", "'speccs'"))).import_errors.values()
    assert f"{tmp_path}/team/speccs is not a directory" in shown


def test_default_args_pools_conf_and_change_apply_to_all_dags(make_folder: MakeFolder) -> None:
    arguments = """default_args={"owner": "house", "queue": "spark"},
    pools={"lakehouse_services": "etl", "big_tables": "big"},
    conf={"spark.executor.memory": "2g", "spark.executor.cores": "3"},
    change=lambda dag: dag.tags.add("mine")"""
    dags = DagBag(make_folder(call(arguments), orders=PUBLISHED)).dags
    assert len(dags) == 2 + len(SERVICE_DAGS)
    tasks = [task for dag in dags.values() for task in dag.tasks]
    assert {(task.owner, task.queue) for task in tasks} == {("house", "spark")}
    assert {task.pool for task in tasks} == {"etl", "big", "lakehouse_publish", "lakehouse_scheduler", "default_pool"}
    assert [dag.dag_id for dag in dags.values() if "mine" not in dag.tags] == []
    ingest = dags["ingest.sales.orders"].get_task("ingest")
    # The spec has 4g.
    assert (ingest.conf["spark.executor.memory"], ingest.conf["spark.executor.cores"]) == ("4g", "3")
    assert ingest.retry_delay == timedelta(seconds=30)
    assert dags["services.clean"].get_task("run").partial_kwargs["conf"]["spark.executor.memory"] == "2g"
    assert dags["publish.sales.orders"].get_task("archive").partial_kwargs["conf"]["spark.executor.cores"] == "3"


def test_user_dags_are_equal_at_every_parse_and_parse_alone_for_a_task(
    make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_folder(orders=PUBLISHED, bad="- nothing")
    first, second = ({n: DagSerialization.to_dict(dag) for n, dag in DagBag(folder).dags.items()} for _ in range(2))
    assert len(first) == 3 + len(SERVICE_DAGS)
    assert first == second
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "publish.sales.orders")
    assert set(DagBag(folder).dags) == {"publish.sales.orders"}


def test_hundred_specs_of_a_user_parse_without_heavy_imports(make_folder: MakeFolder) -> None:
    specs = {f"t{number:03}": ORDERS.replace("sales.orders", f"sales.t{number:03}") for number in range(100)}
    ours = parsed(make_folder(call("services=()"), **specs) / "house.py")
    assert (ours["dags"], ours["errors"], ours["heavy"]) == (100, {}, [])


def test_job_of_a_user_dag_puts_the_specs_of_its_folder_in_force(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(one=minimal("user.one"))
    (tmp_path / "tables").mkdir()
    assert "ingest.user.one" in DagBag(folder).dags
    environ = {"AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path), "AIRFLOW_CTX_DAG_ID": "ingest.user.one"}
    assert spec_variables(environ)[SYNC] == str(folder / "tables")
    # A DAG that lakehouse_dags did not build.
    assert spec_variables({**environ, "AIRFLOW_CTX_DAG_ID": "mine"})[SYNC] == str(tmp_path / "tables")
