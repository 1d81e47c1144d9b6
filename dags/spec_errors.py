"""No DAG: raises for the table specs that cannot be used, so that Airflow shows this file as broken, with the reasons.

The DAGs of the other specs stand: Airflow stops all DAGs of a file with an import error, and they live in other files.
"""

from __future__ import annotations

from pathlib import Path

from lakehouse_airflow.specs import load_specs, spec_directories

load_specs(spec_directories(Path(__file__).parent)).check()
