"""One DAG per table spec with a section `ingest`, or per input of it.

A spec with an error has none: `spec_errors.py` reports it.
"""

from __future__ import annotations

from pathlib import Path

from lakehouse_airflow.assets import source_assets
from lakehouse_airflow.compat import get_parsing_context
from lakehouse_airflow.dags_ingest import ingest_dag
from lakehouse_airflow.specs import load_specs, spec_directories

# A task needs its own DAG only.
parsed_dag = get_parsing_context().dag_id
specs = load_specs(spec_directories(Path(__file__).parent)).good
for spec in specs:
    for one in spec.ingestions:
        if one.ingest is not None and parsed_dag in (None, f"ingest.{one.ingestion_name}"):
            ingest_dag(one, one.ingest, sources=source_assets(one, specs))
