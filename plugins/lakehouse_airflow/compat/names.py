"""Import paths of the names in the interface, for each line of Airflow's versions.

Each table changes the table of the next newer line. A name without a path does not exist in that line.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_HERE = "lakehouse_airflow.compat"
_SDK = (
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
    "Context",
    "CronDataIntervalTimetable",
    "CronTriggerTimetable",
    "DAG",
    "DeadlineAlert",
    "DeadlineReference",
    "DeltaTriggerTimetable",
    "MultipleCronTriggerTimetable",
    "Param",
    "PartitionedAssetTimetable",
    "XComArg",
    "get_current_context",
    "get_parsing_context",
    "task",
    "timezone",
)
_EXCEPTIONS = (
    "AirflowException",
    "AirflowFailException",
    "AirflowRescheduleException",
    "AirflowSensorTimeout",
    "AirflowSkipException",
    "AirflowTimetableInvalid",
    "TaskDeferred",
)
_DATABASE = ("existing_dags", "refusals_of_run", "run_after", "schedule_text")
_OF_TASKS = ("first_reschedule", "has_dag_processor", "health_url", "run_state", "triggering_events")
_OF_TASKS_3_2 = ("add_keyed_events", "emitted_events")
_ARGUMENTS = ("NO_START_DATE", "RETRY_BACKOFF", "allowed_run_types", "deadline_after", "page_prefix")
_FEATURES = ("ASSET_PAGE", "PAGES", "PARTITION_KEYS", "missing_features", "missing_text", "offers")
_TIMES = ("cron_timetables", "is_periodic", "may_be_periodic", "next_run", "trigger_interval")
#: Names of this package that are equal in all versions.
_COMMON = {
    **{name: f"{_HERE}.dag_arguments:{name}" for name in _ARGUMENTS},
    **{name: f"{_HERE}.features:{name}" for name in _FEATURES},
    **{name: f"{_HERE}.timetables:{name}" for name in _TIMES},
    "AirflowPlugin": "airflow.plugins_manager:AirflowPlugin",
    "BaseTrigger": "airflow.triggers.base:BaseTrigger",
    "TriggerEvent": "airflow.triggers.base:TriggerEvent",
    "hookimpl": "airflow.listeners:hookimpl",
}

_AIRFLOW_3_3 = {
    **_COMMON,
    **{name: f"airflow.sdk:{name}" for name in _SDK},
    **{name: f"airflow.sdk.exceptions:{name}" for name in _EXCEPTIONS},
    **{name: f"{_HERE}.airflow_3:{name}" for name in _OF_TASKS},
    **{name: f"{_HERE}.airflow_3_2:{name}" for name in _OF_TASKS_3_2},
    **{name: f"{_HERE}.database_3:{name}" for name in _DATABASE},
    "asset_or_time": "airflow.sdk:AssetOrTimeSchedule",
    "DagBag": "airflow.dag_processing.dagbag:DagBag",
    "DagRunTypeNotAllowed": "airflow.exceptions:DagRunTypeNotAllowed",
    "conf": "airflow.sdk.configuration:conf",
    "connection_of_trigger": f"{_HERE}.since_3_1:connection_of_trigger",
}
_AIRFLOW_3_2 = {**_AIRFLOW_3_3, "add_keyed_events": f"{_HERE}.before_3_3:add_keyed_events"}
_TIMETABLES = {
    "CronDataIntervalTimetable": "airflow.timetables.interval:CronDataIntervalTimetable",
    "CronTriggerTimetable": "airflow.timetables.trigger:CronTriggerTimetable",
    "DeltaTriggerTimetable": "airflow.timetables.trigger:DeltaTriggerTimetable",
    "MultipleCronTriggerTimetable": "airflow.timetables.trigger:MultipleCronTriggerTimetable",
}
_AIRFLOW_3_1 = {
    **_AIRFLOW_3_2,
    **_TIMETABLES,
    **{name: f"airflow.exceptions:{name}" for name in _EXCEPTIONS},
    **{
        name: f"airflow.sdk.definitions.deadline:{name}"
        for name in ("AsyncCallback", "DeadlineAlert", "DeadlineReference")
    },
    **dict.fromkeys(("AssetOrTimeSchedule", "asset_or_time"), "airflow.timetables.assets:AssetOrTimeSchedule"),
    "DagBag": "airflow.models.dagbag:DagBag",
    "DagRunTypeNotAllowed": "",
    "PartitionedAssetTimetable": "",
    "conf": "airflow.configuration:conf",
    "emitted_events": f"{_HERE}.airflow_3_1:emitted_events",
}
_AIRFLOW_3_0 = {
    **_AIRFLOW_3_1,
    **dict.fromkeys(("AsyncCallback", "DeadlineAlert", "DeadlineReference"), ""),
    "BaseHook": "airflow.hooks.base:BaseHook",
    "connection_of_trigger": f"{_HERE}.before_3_1:connection_of_trigger",
    "timezone": "airflow.utils:timezone",
}
_AIRFLOW_2_11 = {
    **_AIRFLOW_3_0,
    **{name: f"{_HERE}.airflow_2:{name}" for name in (*_OF_TASKS, "emitted_events")},
    **{name: f"{_HERE}.database_2:{name}" for name in _DATABASE},
    "Asset": f"{_HERE}.airflow_2:Asset",
    "AssetAlias": f"{_HERE}.airflow_2:AssetAlias",
    "AssetAny": "airflow.datasets:DatasetAny",
    "AssetOrTimeSchedule": "airflow.timetables.datasets:DatasetOrTimeSchedule",
    "BaseNotifier": "airflow.notifications.basenotifier:BaseNotifier",
    "BaseOperator": "airflow.models.baseoperator:BaseOperator",
    "BaseOperatorLink": "airflow.models.baseoperatorlink:BaseOperatorLink",
    "BaseSensorOperator": "airflow.sensors.base:BaseSensorOperator",
    "Context": "airflow.utils.context:Context",
    "DAG": "airflow.models.dag:DAG",
    "asset_or_time": f"{_HERE}.airflow_2:asset_or_time",
    "MultipleCronTriggerTimetable": f"{_HERE}.airflow_2:MultipleCronTriggerTimetable",
    "Param": "airflow.models.param:Param",
    "XComArg": "airflow.models.xcom_arg:XComArg",
    "get_current_context": "airflow.operators.python:get_current_context",
    "get_parsing_context": "airflow.utils.dag_parsing_context:get_parsing_context",
    "task": "airflow.decorators:task",
}

#: Line of versions -> name -> `module:attribute`.
NAMES: Mapping[tuple[int, int], Mapping[str, str]] = MappingProxyType(
    {
        (2, 11): _AIRFLOW_2_11,
        (3, 0): _AIRFLOW_3_0,
        (3, 1): _AIRFLOW_3_1,
        (3, 2): _AIRFLOW_3_2,
        (3, 3): _AIRFLOW_3_3,
    }
)
