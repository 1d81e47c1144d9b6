"""Locates the Spark environment in which jobs run, and gives it to the executors of a cluster.

Airflow's environment has no pyspark, because the Spark provider and pyspark overwrite each other's files. Jobs run in a
second virtual environment with `lakehouse-tables[spark]`; its path is in `LAKEHOUSE_SPARK_HOME`.

    spark-submit     of LAKEHOUSE_SPARK_SUBMIT, of SPARK_HOME, or of pyspark in LAKEHOUSE_SPARK_HOME
    executors        run the Python of an archive that `lakehouse environment pack` wrote: `archive` of `lakehouse` in
                     the extra of the Spark connection, or LAKEHOUSE_SPARK_ARCHIVE. Without one they run the path of
                     the driver's Python, which must exist on their hosts
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lakehouse
from lakehouse.errors import UserError

SPARK_HOME = "LAKEHOUSE_SPARK_HOME"
MODULES = "LAKEHOUSE_MODULES"
SPARK_MASTER = "LAKEHOUSE_SPARK_MASTER"
SUBMIT = "LAKEHOUSE_SPARK_SUBMIT"
ARCHIVE = "LAKEHOUSE_SPARK_ARCHIVE"
_CHECK = "`lakehouse doctor` checks this environment"
#: The name of the unpacked archive in the working directory of executors, and its Python.
_UNPACKED = "environment"
_PACKED_PYTHON = f"./{_UNPACKED}/bin/python"
_ARCHIVES, _PYTHON, _DRIVER_PYTHON = "spark.archives", "spark.pyspark.python", "spark.pyspark.driver.python"
_REDACTION = "spark.redaction.regex"
#: Spark's default for the keys whose values it hides, and the keys of Azure and Google.
_HIDDEN = "(?i)secret|password|token|access[.]?key|account[.]key|private[.]key|credential"


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
    python, binary = home / "bin" / "python", _spark_submit(home, environ)
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


def _spark_submit(home: Path, environ: Mapping[str, str]) -> Path:
    """Return the spark-submit of the cluster's own Spark, or of pyspark in the environment."""
    if environ.get(SUBMIT):
        path = Path(environ[SUBMIT])
        if not path.is_file():
            raise UserError(f"{SUBMIT}={path} is not a file: set it to the spark-submit of the cluster", path=str(path))
        return path
    if environ.get("SPARK_HOME"):
        return Path(environ["SPARK_HOME"]) / "bin" / "spark-submit"
    return home / "bin" / "spark-submit"


def cluster_settings(connection: Any, environ: Mapping[str, str], *, is_cluster_mode: bool) -> dict[str, str]:
    """Return the Spark properties by which a cluster runs the tasks of a job; empty for a local master.

    Args:
        connection: The Airflow connection of the cluster, or None.
        environ: The environment of the task.
        is_cluster_mode: Whether the driver runs on the cluster, where it uses the Python of the archive too.
    """
    master = str(connection.host or "") if connection is not None else ""
    if master.startswith("local"):
        return {}
    own = connection.extra_dejson.get("lakehouse") if connection is not None else None
    archive = (own.get("archive") if isinstance(own, Mapping) else None) or environ.get(ARCHIVE)
    settings = {_REDACTION: _HIDDEN}
    if archive:
        settings |= {_ARCHIVES: _fragment(str(archive)), _PYTHON: _PACKED_PYTHON}
        if is_cluster_mode:
            # YARN's container has the variables of the task's host, unless this setting replaces them.
            settings["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] = _PACKED_PYTHON
        if not is_cluster_mode and environ.get(SPARK_HOME):
            settings[_DRIVER_PYTHON] = str(Path(environ[SPARK_HOME]).absolute() / "bin" / "python")
    return settings


def _fragment(archive: str) -> str:
    """Return the address of an archive with the name of its unpacked folder; raise UserError for another name."""
    address, _, name = archive.partition("#")
    if name not in ("", _UNPACKED):
        raise UserError(f"the archive {archive} is unpacked as {name!r}: leave out #{name}", archive=archive)
    if "://" not in address and not Path(address).is_file():
        raise UserError(
            f"the archive {address} does not exist on this host: `lakehouse environment pack` writes one",
            archive=archive,
        )
    return f"{address}#{_UNPACKED}"


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
