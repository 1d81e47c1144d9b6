"""Checks of the running components: scheduler, DAG processor, triggerer, executor, and the lakehouse DAGs."""

from __future__ import annotations

from typing import Any

from lakehouse.model.display import count_text
from lakehouse.spec.contracts.doctor import CheckState
from lakehouse.spec.quantities import duration_text
from lakehouse_airflow.compat import conf, has_dag_processor
from lakehouse_airflow.doctor_facts import AirflowFacts, Result, deferred_ingestions
from lakehouse_airflow.pools import DEFAULT_POOL, SCHEDULE

_COMPONENTS = {"scheduler": "scheduler", "dag_processor": "DAG processor"}
_HEALTHY = "healthy"
_MOST_NAMES = 20


def check_scheduler(facts: AirflowFacts) -> Result:
    """Check the heartbeats of the scheduler and of the DAG processor."""
    try:
        health = facts.health()
    except (OSError, ValueError) as error:
        return CheckState.WARNING, f"it is unknown whether a scheduler and a DAG processor run: {error}"
    names = list(_COMPONENTS) if has_dag_processor() else ["scheduler"]
    missing = [_absence(health, name) for name in names if _status(health, name) != _HEALTHY]
    if missing:
        return CheckState.FAILED, "; ".join(missing)
    if len(names) == 1:
        return CheckState.OK, "the scheduler sends heartbeats, and parses the DAG files"
    return CheckState.OK, "scheduler and DAG processor send heartbeats"


def check_executor(facts: AirflowFacts) -> Result:
    """Check that the executor has slots and starts tasks."""
    executor, parallelism = conf.get("core", "executor"), conf.getint("core", "parallelism")
    if parallelism < 1:
        return CheckState.FAILED, f"[core] parallelism is {parallelism}: the executor {executor} starts no task"
    slots = None if facts.pools is None else facts.pools.slots.get(DEFAULT_POOL)
    if slots == 0:
        return CheckState.FAILED, f"the pool {DEFAULT_POOL} has 0 slots: the tasks of lakehouse.doctor and others wait"
    text = f"{executor} with {count_text(parallelism, 'slot')}"
    if facts.queued is None or not facts.queued.count:
        return CheckState.OK, text
    waiting = f"{count_text(facts.queued.count, 'task')} queued for up to {duration_text(round(facts.queued.oldest_s))}"
    if facts.queued.running:
        return CheckState.WARNING, f"{text}: {waiting} while {count_text(facts.queued.running, 'task')} run"
    return CheckState.FAILED, f"{text}: {waiting}, and no task runs: no worker of the executor takes tasks"


def check_paused_dags(facts: AirflowFacts) -> Result:
    """Check that lakehouse DAGs are not paused, and that their scheduled runs begin in time."""
    if facts.dags is None:
        return CheckState.SKIPPED, f"the DAG states are unknown: {facts.problem}"
    if not facts.dags.dags:
        return CheckState.WARNING, "Airflow has parsed no DAG of lakehouse"
    # The DAG `services.schedule` is listed first, because all table services depend on it.
    paused = sorted((dag.dag_id for dag in facts.dags.dags if dag.is_paused), key=lambda name: name != SCHEDULE)
    late = [dag for dag in facts.dags.dags if dag.is_overdue]
    problems = []
    if late:
        texts = [dag.overdue_text(facts.dags.now_ms) for dag in late[:_MOST_NAMES]]
        problems.append(f"no run for longer than the interval: {', '.join(texts)}{_more(len(late))}")
    if paused:
        commands = [f"`airflow dags unpause {dag_id}`" for dag_id in paused[:_MOST_NAMES]]
        problems.append(f"{len(paused)} of {count_text(len(facts.dags.dags), 'DAG')} paused: {', '.join(commands)}")
        problems[-1] += _more(len(paused))
    if late:
        return CheckState.FAILED, "; ".join(problems)
    return (CheckState.WARNING, problems[0]) if paused else (CheckState.OK, f"{len(facts.dags.dags)} DAGs, none paused")


def check_triggerer(facts: AirflowFacts) -> Result:
    """Check that a triggerer runs if triggers watch streams."""
    names = deferred_ingestions(facts.specs)
    if not names:
        return CheckState.SKIPPED, "no trigger watches a stream"
    try:
        health = facts.health()
    except (OSError, ValueError) as error:
        return CheckState.WARNING, f"it is unknown whether a triggerer runs, for {', '.join(names)}: {error}"
    if _status(health, "triggerer") == _HEALTHY:
        return CheckState.OK, f"a triggerer runs, for {', '.join(names)}"
    return CheckState.FAILED, f"{_absence(health, 'triggerer')}, but {', '.join(names)} need one"


def _status(health: Any, component: str) -> str | None:
    state = health.get(component)
    return state.get("status") if isinstance(state, dict) else None


def _absence(health: Any, component: str) -> str:
    last = (health.get(component) or {}).get(f"latest_{component}_heartbeat") or "never"
    return f"no {_COMPONENTS.get(component, component)} runs (last heartbeat: {last})"


def _more(count: int) -> str:
    return f" and {count - _MOST_NAMES} more" if count > _MOST_NAMES else ""
