"""Report wrong table specs: this file has no DAG and raises their errors, so that Airflow shows it as broken.

Airflow removes all DAGs of a file with an import error. The DAGs of the valid specs are in other files and stay.
"""

from __future__ import annotations

from pathlib import Path

from lakehouse_airflow.specs import load_specs, spec_directories

load_specs(spec_directories(Path(__file__).parent)).check()
