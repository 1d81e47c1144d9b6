"""A folder of tables with publications, and a real Hive Metastore that presents them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = ROOT / ".venv"
DAGS = ROOT / "dags"
SPEC = """\
table: sales.{name}
location: {place}/{name}
record_key: id
ordering: at
options: {{hoodie.payload.event.time.field: at}}
services:
  publish: {{database: shop, partitions: date, ready: {ready}, success_file: true{more}}}
"""
FILL = """
import sys
from datetime import datetime
import pyarrow as pa
from lakehouse import Table

place, name, *times = sys.argv[1:]
options = {"hoodie.payload.event.time.field": "at"}
table = Table.create(f"{place}/{name}", name=name, record_key=["id"], ordering="at", options=options)
for number, time in enumerate(times):
    table.upsert(pa.table({"id": [f"k{number}"], "at": pa.array([datetime.fromisoformat(time)], pa.timestamp("us"))}))
"""
SHOWN = """
import json, sys
from lakehouse.platform.metastore.hive import HiveMetastore

metastore = HiveMetastore(sys.argv[1])
names = metastore.partition_names("shop", sys.argv[2]) if metastore.table("shop", sys.argv[2]) else []
found = metastore.partitions("shop", sys.argv[2], names) if names else []
print(json.dumps({name: dict(p.parameters) for name, p in zip(names, found)}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """A folder with table specs and tables, and the metastore of their publications."""

    place: Path
    uri: str

    def environment(self) -> dict[str, str]:
        """Return the environment variables of Airflow's processes."""
        return {
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "LAKEHOUSE_HOME": str(self.place),
            "LAKEHOUSE_METASTORE": self.uri,
            "LAKEHOUSE_REPORTS": str(self.place / "reports"),
            "LAKEHOUSE_SPARK_HOME": str(SPARK_HOME),
            "LAKEHOUSE_SPECS": str(self.place / "specs"),
        }

    def add(self, name: str, *times: str, ready: str = "[event_time, signal]", more: str = "") -> str:
        """Create the table `sales.<name>` with one commit of one row per time, and its spec; return the spec's path."""
        spec = self.place / "specs" / f"{name}.yaml"
        spec.write_text(SPEC.format(name=name, place=self.place, ready=ready, more=more), encoding="utf-8")
        self.python("-c", dedent(FILL), str(self.place), name, *times)
        return str(spec)

    def python(self, *words: str) -> str:
        """Run Python in Spark's environment; return its output."""
        environ = {"PATH": "/usr/bin:/bin", **self.environment()}
        command = [SPARK_HOME / "bin" / "python", *words]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def shown(self, name: str) -> dict[str, dict[str, str]]:
        """Return the partitions of `shop.<name>` in the metastore, with their parameters."""
        found: dict[str, dict[str, str]] = json.loads(self.python("-c", SHOWN, self.uri, name))
        return found
