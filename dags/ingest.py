"""One DAG per table spec with a section `ingest`. A spec with an error has none: `spec_errors.py` reports it."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import get_parsing_context

from lakehouse_airflow.assets import source_assets
from lakehouse_airflow.dags_ingest import ingest_dag
from lakehouse_airflow.specs import load_specs, spec_directories

# A task needs its own DAG only.
parsed_dag = get_parsing_context().dag_id
specs = load_specs(spec_directories(Path(__file__).parent)).good
for spec in specs:
    if spec.ingest is not None and parsed_dag in (None, f"ingest.{spec.table}"):
        ingest_dag(spec, spec.ingest, sources=source_assets(spec, specs))
