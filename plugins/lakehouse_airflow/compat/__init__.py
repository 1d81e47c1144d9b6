"""Airflow names that this package uses, for all supported Airflow versions.

All other modules of this package, the DAG files and the demo import names that differ between versions from here. Only
modules in this folder compare versions. `names.py` has the import path of each name per version.

A name is imported when it is first used, so the plugin, which each process of Airflow loads, imports little.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakehouse_airflow.compat.names import NAMES
from lakehouse_airflow.compat.versions import airflow_version, installed_line

if TYPE_CHECKING:
    from airflow.dag_processing.dagbag import DagBag
    from airflow.exceptions import DagRunTypeNotAllowed
    from airflow.listeners import hookimpl
    from airflow.plugins_manager import AirflowPlugin
    from airflow.sdk import (
        DAG,
        Asset,
        AssetAlias,
        AssetAny,
        AssetOrTimeSchedule,
        AsyncCallback,
        BaseHook,
        BaseNotifier,
        BaseOperator,
        BaseOperatorLink,
        BaseSensorOperator,
        Context,
        CronDataIntervalTimetable,
        CronTriggerTimetable,
        DeadlineAlert,
        DeadlineReference,
        DeltaTriggerTimetable,
        MultipleCronTriggerTimetable,
        Param,
        PartitionedAssetTimetable,
        XComArg,
        get_current_context,
        get_parsing_context,
        task,
        timezone,
    )
    from airflow.sdk import AssetOrTimeSchedule as asset_or_time
    from airflow.sdk.configuration import conf
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowRescheduleException,
        AirflowSensorTimeout,
        AirflowSkipException,
        AirflowTimetableInvalid,
        TaskDeferred,
    )
    from airflow.triggers.base import BaseTrigger, TriggerEvent

    from lakehouse_airflow.compat.airflow_3 import (
        first_reschedule,
        has_dag_processor,
        health_url,
        run_state,
        triggering_events,
    )
    from lakehouse_airflow.compat.airflow_3_2 import add_keyed_events, emitted_events
    from lakehouse_airflow.compat.dag_arguments import (
        NO_START_DATE,
        RETRY_BACKOFF,
        allowed_run_types,
        deadline_after,
        page_prefix,
    )
    from lakehouse_airflow.compat.database_3 import existing_dags, refusals_of_run, run_after, schedule_text
    from lakehouse_airflow.compat.features import (
        ASSET_PAGE,
        PAGES,
        PARTITION_KEYS,
        missing_features,
        missing_text,
        offers,
    )
    from lakehouse_airflow.compat.since_3_1 import connection_of_trigger
    from lakehouse_airflow.compat.timetables import (
        cron_timetables,
        is_periodic,
        may_be_periodic,
        next_run,
        trigger_interval,
    )

__all__ = [
    "ASSET_PAGE",
    "DAG",
    "NO_START_DATE",
    "PAGES",
    "PARTITION_KEYS",
    "RETRY_BACKOFF",
    "AirflowException",
    "AirflowFailException",
    "AirflowPlugin",
    "AirflowRescheduleException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTimetableInvalid",
    "Asset",
    "AssetAlias",
    "AssetAny",
    "AssetOrTimeSchedule",
    "AsyncCallback",
    "BaseHook",
    "BaseNotifier",
    "BaseOperator",
    "BaseOperatorLink",
    "BaseSensorOperator",
    "BaseTrigger",
    "Context",
    "CronDataIntervalTimetable",
    "CronTriggerTimetable",
    "DagBag",
    "DagRunTypeNotAllowed",
    "DeadlineAlert",
    "DeadlineReference",
    "DeltaTriggerTimetable",
    "MultipleCronTriggerTimetable",
    "Param",
    "PartitionedAssetTimetable",
    "TaskDeferred",
    "TriggerEvent",
    "XComArg",
    "add_keyed_events",
    "allowed_run_types",
    "asset_or_time",
    "conf",
    "deadline_after",
    "missing_features",
    "missing_text",
    "offers",
    "connection_of_trigger",
    "cron_timetables",
    "emitted_events",
    "existing_dags",
    "first_reschedule",
    "get_current_context",
    "get_parsing_context",
    "has_dag_processor",
    "health_url",
    "hookimpl",
    "is_periodic",
    "may_be_periodic",
    "module_of",
    "next_run",
    "page_prefix",
    "refusals_of_run",
    "run_after",
    "run_state",
    "schedule_text",
    "task",
    "timezone",
    "trigger_interval",
    "triggering_events",
]


def __getattr__(name: str) -> Any:
    """Import a name from its module in the installed Airflow."""
    paths = NAMES[installed_line()]
    if name not in paths:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = _imported(name, paths[name])
    globals()[name] = value
    return value


def module_of(name: str) -> str:
    """Return the module from which users import a name of Airflow in the installed version."""
    return NAMES[installed_line()][name].partition(":")[0]


def _imported(name: str, path: str) -> Any:
    if not path:
        raise ImportError(f"Airflow {airflow_version()} has no {name}")
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"Airflow {airflow_version()}: {name} cannot be imported: {error}") from error
