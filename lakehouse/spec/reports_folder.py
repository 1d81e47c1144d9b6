"""The place of job reports: a folder that only this user can read, a URL in shared storage, or the catalog.

LAKEHOUSE_REPORTS=/shared/reports         a folder
LAKEHOUSE_REPORTS=s3://bucket/reports     an object store (s3, gs, abfss, ...) or HDFS
LAKEHOUSE_REPORTS=catalog                 the default catalog (LAKEHOUSE_CATALOG)
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lakehouse.spec.private_files import own_folder, private_folder

REPORTS = "LAKEHOUSE_REPORTS"
#: Value for reports in the catalog, and the scheme in their addresses.
CATALOG = "catalog"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def is_folder(address: str) -> bool:
    """Return whether a report address, or a value of LAKEHOUSE_REPORTS, is a path."""
    return address != CATALOG and not address.startswith(f"{CATALOG}:") and _URL.match(address) is None


def report_address(environ: Mapping[str, str], *parts: str) -> str:
    """Return the address of a job's report in the place that `LAKEHOUSE_REPORTS` names; `parts` identify the job."""
    place = environ.get(REPORTS, "")
    path = "/".join((*parts, "report.json"))
    if is_folder(place):
        return str(reports_folder(environ) / path)
    # HDFS refuses the colons of Airflow's run ids in names.
    return f"{CATALOG}:{path}" if place == CATALOG else f"{place.rstrip('/')}/{path.replace(':', '=')}"


def reports_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder that `LAKEHOUSE_REPORTS` names, or a folder of this user below the temporary directory.

    The latter is also the folder for local files, such as logs, if reports are in another store.
    """
    place = environ.get(REPORTS)
    if place and is_folder(place):
        return Path(place).absolute()
    return Path(tempfile.gettempdir()) / f"lakehouse-reports-{os.geteuid()}"


def make_reports_folder(environ: Mapping[str, str], *parts: str) -> Path:
    """Create the folder of reports, and nested folders `parts` below it; return the innermost one.

    Raises UserError if the folder belongs to another user or cannot be created.
    """
    root = reports_folder(environ)
    if not (environ.get(REPORTS) and is_folder(environ[REPORTS])):
        # The name is predictable, and every user can create folders in the parent.
        own_folder(root)
    return private_folder(root, *parts)
