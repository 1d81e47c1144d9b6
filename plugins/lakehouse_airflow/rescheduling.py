"""Reschedules a task, so that it waits without a slot and without using up a try.

A task is rescheduled while another run works on its table. The runs of a backfill therefore work on a table one after
the other, even if Airflow starts many of them concurrently. It is also rescheduled while data is missing, if the spec
says `missing: wait`.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from zlib import crc32

from lakehouse_airflow.compat import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    Context,
    first_reschedule,
    timezone,
)

log = logging.getLogger(__name__)

#: Maximum total time that a task waits for other runs.
MAX_WAIT = timedelta(hours=6)
#: Pause in seconds, and maximum random addition, so that waiting tasks do not start their jobs simultaneously.
_PAUSE_S = 8
#: Minimum and maximum pause between two checks for data.
SHORTEST_PAUSE, LONGEST_PAUSE = timedelta(seconds=30), timedelta(minutes=5)


def reschedule(context: Context, reason: str, max_wait: timedelta | None = None) -> AirflowException:
    """Return the exception that makes Airflow run the task again soon, without counting a try.

    `reason` describes the event for which the task waits. After a total of `max_wait` (default MAX_WAIT) the result is
    a failure without a retry.
    """
    now = timezone.utcnow()
    share = crc32(f"{context['ti'].run_id} {now}".encode()) % _PAUSE_S
    return _rescheduled(context, reason, max_wait or MAX_WAIT, now, timedelta(seconds=_PAUSE_S + share))


def reschedule_for_data(context: Context, reason: str, max_wait: timedelta) -> AirflowException:
    """Return the exception to raise while data is missing: a reschedule, or a failure after `max_wait`.

    Every check is a job. The pause between two checks is a quarter of the time waited so far, from SHORTEST_PAUSE to
    LONGEST_PAUSE.
    """
    now = timezone.utcnow()
    waited = now - _first_wait(context, now)
    return _rescheduled(context, reason, max_wait, now, min(max(waited / 4, SHORTEST_PAUSE), LONGEST_PAUSE))


def _rescheduled(
    context: Context, reason: str, max_wait: timedelta, now: datetime, pause: timedelta
) -> AirflowException:
    waited = now - _first_wait(context, now)
    if waited > max_wait:
        return AirflowFailException(f"waited {waited} without success: {reason}")
    log.info("waiting, next check in %s: %s", pause, reason)
    return AirflowRescheduleException(now + pause)


def _first_wait(context: Context, now: datetime) -> datetime:
    # Airflow returns None until the first reschedule of the task.
    return first_reschedule(context) or now
