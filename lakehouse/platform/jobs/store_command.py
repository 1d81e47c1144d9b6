"""Use the store of a job from a process that has no storage clients, such as an Airflow task.

    python -m lakehouse.platform.jobs.store_command < request

The request is JSON: `{"address": ..., "change": {document: text or null}, "read": [document]}`. The answer on standard
output is a JSON object with the documents. Changes are made first. Errors are printed, with the exit code of their
class.
"""

from __future__ import annotations

import json
import os
import sys
from typing import IO

from lakehouse.errors import LakehouseError
from lakehouse.platform.jobs.report_stores import open_report_store
from lakehouse.spec.report_store import JobDocument
from lakehouse.spec.secrets import redact_text


def main(source: IO[str], output: IO[str], errors: IO[str]) -> int:
    """Answer one request and return the exit code."""
    request = json.load(source)
    try:
        store = open_report_store(request["address"], os.environ)
        changes = {JobDocument(name): text for name, text in request.get("change", {}).items()}
        if changes:
            store.change(changes)
        names = [JobDocument(name) for name in request.get("read", ())]
        texts = store.read(*names) if names else {}
    except LakehouseError as error:
        errors.write(f"{type(error).__name__}: {redact_text(str(error))}\n")
        return error.exit_code
    json.dump({name.value: text for name, text in texts.items()}, output)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin, sys.stdout, sys.stderr))
