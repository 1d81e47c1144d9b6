"""Locates the Spark environment in which jobs run.

Airflow's environment has no pyspark, because the Spark provider and pyspark overwrite each other's files. Jobs run in a
second virtual environment with `lakehouse-tables[spark]`; its path is in `LAKEHOUSE_SPARK_HOME`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

import lakehouse
from lakehouse.errors import UserError

SPARK_HOME = "LAKEHOUSE_SPARK_HOME"
MODULES = "LAKEHOUSE_MODULES"
SPARK_MASTER = "LAKEHOUSE_SPARK_MASTER"
_CHECK = "`lakehouse doctor` checks this environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkEnvironment:
    """The path of spark-submit, the script that it runs, and the environment variables of the job."""

    binary: str
    application: str
    variables: Mapping[str, str]


def spark_environment(environ: Mapping[str, str]) -> SparkEnvironment:
    """Return the Spark environment; raise UserError if it is missing or incomplete.

    The script is `lakehouse/__main__.py` of the Spark environment, or of the source tree for an editable installation.
    PYTHONPATH contains the source tree and the folders of modules that specs use, such as custom mergers. These folders
    are in `LAKEHOUSE_MODULES` (separated by colons); the default is the folder of the DAGs.
    """
    named = environ.get(SPARK_HOME)
    if not named:
        raise UserError(
            f"set {SPARK_HOME} to the virtual environment with lakehouse-tables[spark], in which jobs run. {_CHECK}"
        )
    home = Path(named).absolute()
    python, binary = home / "bin" / "python", home / "bin" / "spark-submit"
    for path in (python, binary):
        if not path.exists():
            raise UserError(
                f"{SPARK_HOME}={named}: {path} is missing; install lakehouse-tables[spark] there. {_CHECK}",
                path=str(path),
            )
    # spark-submit runs this Python to locate Spark. Without PYTHONSAFEPATH, the script's folder would be first on
    # sys.path, and packages of lakehouse could hide others with the same name.
    variables = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python), "PYTHONSAFEPATH": "1"}
    search = [*_module_folders(environ), *filter(None, [environ.get("PYTHONPATH")])]
    installed = next(iter(sorted(home.glob("lib/python*/site-packages/lakehouse/__main__.py"))), None)
    if installed is not None:
        return SparkEnvironment(
            binary=str(binary), application=str(installed), variables=variables | {"PYTHONPATH": ":".join(search)}
        )
    package = Path(lakehouse.__file__).absolute().parent
    if package.parent.name in ("site-packages", "dist-packages"):
        raise UserError(f"{SPARK_HOME}={named} has no lakehouse: install lakehouse-tables[spark] there. {_CHECK}")
    return SparkEnvironment(
        binary=str(binary),
        application=str(package / "__main__.py"),
        variables={**variables, "PYTHONPATH": ":".join([str(package.parent), *search])},
    )


def _module_folders(environ: Mapping[str, str]) -> list[str]:
    if environ.get(MODULES):
        return environ[MODULES].split(":")
    dags = environ.get("AIRFLOW__CORE__DAGS_FOLDER") or str(Path(environ.get("AIRFLOW_HOME", "~/airflow")) / "dags")
    folder = Path(dags).expanduser()
    return [str(folder)] if folder.is_dir() else []


def provide_connection(connection_id: str, environ: MutableMapping[str, str]) -> None:
    """Define a missing Spark connection from `LAKEHOUSE_SPARK_MASTER`; raise UserError if the variable is not set.

    Without a connection the provider would silently submit to YARN.
    """
    master, variable = environ.get(SPARK_MASTER), f"AIRFLOW_CONN_{connection_id.upper()}"
    if not master:
        example = json.dumps({"conn_type": "spark", "host": "local[2]"})
        raise UserError(
            f"the Airflow connection {connection_id!r} does not exist or does not parse: create it, or set "
            f"{variable}='{example}', or {SPARK_MASTER}=local[2]. {_CHECK}"
        )
    environ[variable] = json.dumps({"conn_type": "spark", "host": master})
