"""Checks of the host and Spark's environment: Python, packages, Spark, Java, folders, modules."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from lakehouse.errors import UserError
from lakehouse.platform.doctor.deployment import Deployment
from lakehouse.platform.doctor.finding import Finding, combined, failed, ok, skipped, warning
from lakehouse.spec.reports_folder import REPORTS, is_folder, reports_folder
from lakehouse.spec.table.folder import SpecProblem

_LEAST_PYTHON, _LEAST_JAVA = (3, 11), 17
#: Imported name -> distribution, for the packages in the extra `spark`.
_PACKAGES = {name: name for name in ("fastavro", "numpy", "obstore", "pandas", "pyarrow", "pyspark")}
#: First supported and first unsupported version of pyspark, as pyproject.toml declares them.
_PYSPARK = ("3.5", "4.0", "4.1")
#: Other distributions that contain the package `pyspark`.
_OVERWRITE = ("pyspark-client", "pyspark-connect")
_CORE_JAR = re.compile(r"spark-core_[\d.]+-(\d[\w.-]*)\.jar")
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)([^"]*)"')
_JAVA_S = 15
MODULES = "LAKEHOUSE_MODULES"


def check_python(deployment: Deployment) -> Finding:
    """Check the version of this Python."""
    del deployment
    description = f"Python {sys.version.split()[0]} in {sys.prefix}"
    return ok(description) if sys.version_info[:2] >= _LEAST_PYTHON else failed(description)


def check_packages(deployment: Deployment) -> Finding:
    """Check that the packages of the extra `spark` can be imported."""
    del deployment
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        return failed(f"missing in {sys.prefix}: {', '.join(missing)}")
    return ok(", ".join(f"{name} {_version(name) or '?'}" for name in _PACKAGES.values()))


def check_pyspark(deployment: Deployment) -> Finding:
    """Check the version of pyspark, and that no other distribution overwrote its files."""
    del deployment
    installed, folder = _version("pyspark"), _pyspark_folder()
    if installed is None or folder is None:
        return failed(f"pyspark is not installed in {sys.prefix}")
    overwritten = [name for name in _OVERWRITE if _version(name) is not None]
    if overwritten:
        return failed(f"pyspark {installed} and {', '.join(overwritten)} share the folder {folder}")
    files = version_in_files(folder)
    if files != installed:
        return failed(f"pip installed pyspark {installed}, but the files in {folder} have version {files}")
    if _minor(installed) not in _PYSPARK:
        return failed(f"pyspark {installed} is not supported; supported are {', '.join(_PYSPARK)}")
    return ok(f"pyspark {installed} in {folder}")


def check_spark_jars(deployment: Deployment) -> Finding:
    """Compare the minor version of the Spark that spark-submit starts with that of pyspark."""
    home, installed = spark_home(deployment), _version("pyspark")
    if home is None or installed is None:
        return skipped("pyspark is not installed")
    try:
        names = os.listdir(home / "jars")
    except OSError as error:
        return failed(f"the jars of Spark in {home / 'jars'} cannot be listed: {error.strerror}")
    versions = sorted({match[1] for name in names if (match := _CORE_JAR.fullmatch(name))})
    if [_minor(version) for version in versions] != [_minor(installed)]:
        return failed(
            f"Spark {', '.join(versions) or 'without a jar of its core'} in {home}, but pyspark is {installed}"
        )
    return ok(f"Spark {versions[0]} in {home}")


def check_java(deployment: Deployment) -> Finding:
    """Check the version of the Java that Spark starts."""
    home = deployment.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else "java"
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=_JAVA_S)
    except FileNotFoundError:
        return failed(f"{java} is not found{'' if home else ' on PATH, and JAVA_HOME is not set'}")
    except (OSError, subprocess.TimeoutExpired) as error:
        return failed(f"{java} -version: {error}")
    match = _JAVA_VERSION.search(done.stderr) or _JAVA_VERSION.search(done.stdout)
    if match is None:
        return failed(f"{java} -version ended with exit code {done.returncode} and printed no version")
    text = f"Java {match[1]}{match[2]} ({java})"
    return ok(text) if int(match[1]) >= _LEAST_JAVA else failed(text)


def check_reports(deployment: Deployment) -> Finding:
    """Check that the folder of reports is a private, writable folder of this user. Nothing is written."""
    place = deployment.environ.get(REPORTS, "")
    if not is_folder(place):
        return ok(f"reports in {place}")
    folder = reports_folder(deployment.environ)
    try:
        status = os.stat(folder)
    except FileNotFoundError:
        if not deployment.environ.get(REPORTS):
            return ok(f"{folder} does not exist; the first job creates it")
        above = next(parent for parent in folder.parents if parent.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            return failed(f"{folder} does not exist, and this user cannot create it in {above}")
        return warning(f"{folder} does not exist; the first job creates it", "Run `airflow lakehouse setup`.")
    except OSError as error:
        return failed(f"{folder}: {error.strerror}")
    if not stat.S_ISDIR(status.st_mode):
        return failed(f"{folder} is not a folder")
    if status.st_uid not in (0, os.geteuid()):
        return failed(f"{folder} belongs to the user {status.st_uid}, and this process runs as {os.geteuid()}")
    if not os.access(folder, os.W_OK | os.X_OK):
        return failed(f"the user {os.geteuid()} cannot write in {folder}")
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        return warning(f"{folder} has mode {mode:o}, so other users can list the names of runs", f"chmod 700 {folder}")
    return ok(f"{folder}, mode {mode:o}, owner {status.st_uid}")


def check_specs(deployment: Deployment) -> Finding:
    """Check that the folders of specs exist and that all specs are valid and have a location."""
    if not deployment.spec_folders:
        return skipped("no folder of specs is named: set LAKEHOUSE_SPECS")
    findings = [failed(f"{folder} is not a folder") for folder in deployment.spec_folders if not folder.is_dir()]
    findings += [failed(_located(problem)) for problem in deployment.specs.problems]
    findings += [failed(text) for text in deployment.unplaced]
    count = len(deployment.specs.specs)
    findings.append(ok(f"{count} valid in {', '.join(map(str, deployment.spec_folders))}"))
    return combined(findings, "")


def check_modules(deployment: Deployment) -> Finding:
    """Check the folders of modules, and the modules of functions in specs."""
    folders = [Path(text) for text in deployment.environ.get(MODULES, "").split(os.pathsep) if text]
    findings = [failed(f"{MODULES}: {folder} is not a folder") for folder in folders if not folder.is_dir()]
    findings += [ok(str(folder)) for folder in folders if folder.is_dir()]
    for name in sorted({name for spec in deployment.specs.specs for name in spec.functions}):
        module = name.partition(":")[0]
        findings.append(ok(name) if _exists(module) else failed(f"{name}: there is no module {module}"))
    return combined(findings, "no spec names a function, and LAKEHOUSE_MODULES is not set")


def _located(problem: SpecProblem) -> str:
    """Return the message of a problem, with the path of the file unless it contains the path."""
    return problem.message if problem.file in problem.message else f"{problem.file}: {problem.message}"


def version_in_files(folder: Path) -> str:
    """Return the version in `pyspark/version.py`."""
    try:
        text = (folder / "version.py").read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}/version.py cannot be read: {error.strerror}") from error
    match = re.search(r"__version__[^=]*=\s*[\"']([^\"']+)", text)
    return match[1] if match else "unknown"


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def spark_home(deployment: Deployment) -> Path | None:
    """Return the folder of the Spark that spark-submit starts; None if pyspark is not installed."""
    named = deployment.environ.get("SPARK_HOME")
    return Path(named) if named else _pyspark_folder()


def _pyspark_folder() -> Path | None:
    spec = find_spec("pyspark")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _exists(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def _minor(version: str) -> str:
    """Return major and minor version; the last digit and the suffix of a vendor's build may differ."""
    return ".".join(version.split(".")[:2])
