"""Write the OpenAPI document of the REST API: `.venv-airflow/bin/python docs/openapi.py` in Airflow's environment.

`make reference` makes the page of the REST API from it, and a test compares it with the application.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS.parent / "plugins")]

from lakehouse_airflow.api.app import build_app  # noqa: E402 -- the repository is on the path only now


def openapi_text() -> str:
    """Return the document as it is stored."""
    return json.dumps(build_app().openapi(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    (DOCS / "reference" / "openapi.json").write_text(openapi_text(), encoding="utf-8")
