"""One DAG per table spec with a section `services.publish`."""

from __future__ import annotations

from pathlib import Path

from lakehouse_airflow.compat import get_parsing_context
from lakehouse_airflow.dags_publish import publish_dag
from lakehouse_airflow.specs import load_specs, spec_directories

# A task needs its own DAG only.
parsed_dag = get_parsing_context().dag_id
for spec in load_specs(spec_directories(Path(__file__).parent)).good:
    publish = spec.publication()
    if publish is not None and parsed_dag in (None, f"publish.{spec.table}"):
        publish_dag(spec, publish)
