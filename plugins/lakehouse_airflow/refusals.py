"""Refused parameters: the task fails without a retry, and the note of its run has the reason.

A task cannot write notes, because it does not reach Airflow's database. It leaves the reason as an XCom value, and a
listener in the scheduler copies it into the notes of the run and of the task when the run has failed. When the run is
cleared and starts again, the notes are removed (`missing_pools`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from lakehouse.errors import UserError

log = logging.getLogger(__name__)

#: Key of the XCom value with the reason. Airflow deletes it when the task starts again.
REFUSED = "lakehouse_refused"


@contextmanager
def noted_refusals(context: Mapping[str, Any]) -> Iterator[None]:
    """Let a block fail the task without a retry for wrong parameters, with the reason in the note of its run."""
    try:
        yield
    except UserError as error:
        _keep_reason(context, str(error))
        raise AirflowFailException(str(error)) from error
    except AirflowFailException as error:
        # A command in Spark's environment refused them.
        _keep_reason(context, str(error))
        raise


def _keep_reason(context: Mapping[str, Any], reason: str) -> None:
    """Store the reason for the note; the task fails anyway, so that an error is logged only."""
    try:
        context["ti"].xcom_push(key=REFUSED, value=reason)
    except Exception:
        log.warning("the reason is not in the note of the run", exc_info=True)
