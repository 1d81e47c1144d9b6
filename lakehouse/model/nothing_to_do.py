"""Reason codes of operations that had nothing to do."""

from __future__ import annotations

from enum import StrEnum


class NothingToDoReason(StrEnum):
    """Why an operation committed nothing, for programs. The contract JobReason defines the same values."""

    #: The trigger condition of the service does not hold.
    NOT_DUE = "not_due"
    #: No file group, file, action or partition qualifies for the service.
    NO_CANDIDATES = "no_candidates"
    #: A plan of the service is pending and has to be executed first.
    ALREADY_PENDING = "already_pending"
    #: The plan could not be executed and was removed from the timeline.
    PLAN_DROPPED = "plan_dropped"
    #: The service plans and executes in one step, so it schedules no plan.
    SINGLE_STEP = "single_step"
    #: The table already has the requested state.
    NO_CHANGES = "no_changes"
