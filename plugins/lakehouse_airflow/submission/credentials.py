"""Send the secrets of a job to a driver on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from lakehouse.spec.credentials_file import CREDENTIALS, credentials_file
from lakehouse_airflow.submission.protocol import JobRequest, SubmissionChoice

_FILES = "spark.yarn.dist.files"


@contextmanager
def with_credentials(choice: SubmissionChoice, request: JobRequest, secrets: Mapping[str, str]) -> Iterator[JobRequest]:
    """Yield the request with a file of secrets for a driver on YARN; the file exists in this block only.

    Other clusters have identities or secrets of their own, so their requests are not changed.
    """
    if choice.name != "yarn" or not secrets:
        yield request
        return
    with credentials_file(secrets) as path:
        files = ",".join(filter(None, (request.conf.get(_FILES), str(path))))
        yield replace(
            request,
            conf={**request.conf, _FILES: files},
            variables={**request.variables, CREDENTIALS: path.name},
        )
