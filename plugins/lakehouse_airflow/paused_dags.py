"""Decide which DAGs of a deployment start paused.

Airflow creates a DAG paused unless the DAG or `[core] dags_are_paused_at_creation` specifies otherwise. Later only a
user changes the state. A deployment decides once, with `lakehouse_dags(..., paused=...)` or by `LAKEHOUSE_DAGS_PAUSED`:

    true                          all DAGs of lakehouse start paused
    false                         none does
    ingest.*, publish.*           these start paused, and the others run
    *, !services.schedule         all but services.schedule start paused; the last pattern that matches a DAG counts
    !services.schedule            services.schedule runs, and the others are as Airflow creates them

The decision applies when Airflow first creates a DAG. Without a decision, `lakehouse.actions` runs, and the other DAGs
are as Airflow creates them.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from lakehouse.errors import UserError, nearest
from lakehouse.spec.table.services import SERVICES
from lakehouse_airflow.pools import DOCTOR, SCHEDULE

VARIABLE = "LAKEHOUSE_DAGS_PAUSED"
#: Type of the argument `paused`: a value for all DAGs, or patterns of DAG ids.
Paused = bool | str | Collection[str]
_WORDS = {"true": True, "false": False}
_EXCEPT = "!"
#: Prefixes of DAG ids.
_KINDS = ("ingest", "publish", "services", "lakehouse")
_OWN = (DOCTOR, "lakehouse.actions")
_HOW = "write true, false, or ids and patterns such as 'ingest.*, publish.*' or '*, !services.schedule'"


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedDags:
    """The decision of a deployment: an ordered list of id patterns, each with whether matching DAGs start paused."""

    patterns: tuple[tuple[str, bool], ...] = ()

    def starts_paused(self, dag_id: str) -> bool | None:
        """Return whether a DAG starts paused, or None if Airflow's own setting applies."""
        matching = [paused for pattern, paused in self.patterns if fnmatchcase(dag_id, pattern)]
        if matching:
            return matching[-1]
        # A list of paused DAGs also decides that all others run. A list of exceptions only decides about these DAGs.
        return False if any(paused for _, paused in self.patterns) else None


def paused_dags(paused: Paused | None = None, environ: Mapping[str, str] = os.environ) -> PausedDags:
    """Return the decision of a deployment.

    Args:
        paused: True, False, ids and patterns of the DAGs that start paused, or None to use the variable.
        environ: Environment with the variable.

    Raises:
        UserError: The value is none of these, or a pattern matches no DAG of lakehouse.
    """
    if paused is None:
        return _parsed(environ.get(VARIABLE, ""), VARIABLE)
    if isinstance(paused, bool):
        return PausedDags(patterns=(("*", paused),))
    if isinstance(paused, str):
        return _parsed(paused, "paused")
    if not isinstance(paused, Collection) or isinstance(paused, bytes | Mapping):
        raise UserError(f"paused={paused!r} has the type {type(paused).__name__}: {_HOW}")
    # An empty list pauses no DAG; an empty string makes no decision.
    return _listed(list(paused), "paused") if paused else PausedDags(patterns=(("*", False),))


def creation_state(dag_id: str, environ: Mapping[str, str] = os.environ) -> dict[str, bool]:
    """Return the DAG argument for the decision in `LAKEHOUSE_DAGS_PAUSED`.

    The result is empty if there is no decision.
    """
    paused = paused_dags(None, environ).starts_paused(dag_id)
    return {} if paused is None else {"is_paused_upon_creation": paused}


def _parsed(text: str, name: str) -> PausedDags:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) == 1 and words[0].lower() in _WORDS:
        return PausedDags(patterns=(("*", _WORDS[words[0].lower()]),))
    return _listed(words, name)


def _listed(words: list[str], name: str) -> PausedDags:
    return PausedDags(patterns=tuple((_checked(word, name), not word.startswith(_EXCEPT)) for word in words))


def _checked(word: str, name: str) -> str:
    """Parse a word to a pattern. Raise UserError if no lakehouse DAG can have a matching id."""
    if not isinstance(word, str):
        raise UserError(f"{name}: {word!r} is not an id or pattern of DAGs: {_HOW}")
    pattern = word.removeprefix(_EXCEPT).strip()
    kind, dot, rest = pattern.partition(".")
    if any(sign in kind for sign in "*?["):
        return pattern
    if kind not in _KINDS or not dot or not rest:
        raise UserError(
            f"{name}: {word!r} matches no DAG of lakehouse; ids begin with {', '.join(f'{one}.' for one in _KINDS)}."
            f"{nearest(kind, _KINDS)} To correct it, {_HOW}",
        )
    ids = _own_ids(kind)
    if ids and not any(fnmatchcase(dag_id, pattern) for dag_id in ids):
        raise UserError(f"{name}: {word!r} matches no DAG.{nearest(pattern, ids)} Known: {', '.join(ids)}.")
    return pattern


def _own_ids(kind: str) -> tuple[str, ...]:
    """Return the DAG ids of a kind if they do not depend on specs, otherwise an empty tuple."""
    return {"services": (SCHEDULE, *(f"services.{name}" for name in SERVICES)), "lakehouse": _OWN}.get(kind, ())
