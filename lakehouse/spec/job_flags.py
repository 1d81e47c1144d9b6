"""The flags of jobs: the command line, its help and the encoder of commands derive from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class FlagForm(Enum):
    """The form of a job's flag: with a value once or several times, with `key=value`, or without a value."""

    VALUE = auto()
    REPEATED = auto()
    PAIRS = auto()
    SWITCH = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFlag:
    """A flag of a job: its spelling, the field of its command, its form, and a sentence for help."""

    flag: str
    field: str
    form: FlagForm
    value: str = ""
    text: str


#: Flags of all jobs, in the order of help. A job accepts the flags of other jobs and ignores them.
JOB_FLAGS = (
    JobFlag(
        flag="--table",
        field="tables",
        form=FlagForm.REPEATED,
        value="TABLE",
        text="A table spec (YAML), a table's location, or [catalog:]namespace.table; a service accepts several names.",
    ),
    JobFlag(
        flag="--input",
        field="input",
        form=FlagForm.VALUE,
        value="NAME",
        text="The input to ingest, if the spec declares several `inputs`.",
    ),
    JobFlag(
        flag="--partition",
        field="partitions",
        form=FlagForm.REPEATED,
        value="PATH",
        text="Work on this partition only, such as dt=2026-01-31; repeatable.",
    ),
    JobFlag(
        flag="--interval-start",
        field="interval_start",
        form=FlagForm.VALUE,
        value="TIME",
        text="Start of the data interval, ISO 8601; without an offset in the `timezone` of `ingest`, else UTC.",
    ),
    JobFlag(
        flag="--interval-end",
        field="interval_end",
        form=FlagForm.VALUE,
        value="TIME",
        text="End of the data interval, exclusive.",
    ),
    JobFlag(
        flag="--run-id",
        field="run_id",
        form=FlagForm.VALUE,
        value="ID",
        text="Identity of the run; a retry with the same one never commits twice.",
    ),
    JobFlag(
        flag="--report",
        field="report",
        form=FlagForm.VALUE,
        value="PATH",
        text="Also write the JSON report to this file, after success and after failure.",
    ),
    JobFlag(
        flag="--instant",
        field="instant",
        form=FlagForm.VALUE,
        value="INSTANT",
        text="Execute the pending plan of this instant.",
    ),
    JobFlag(
        flag="--commit",
        field="commit",
        form=FlagForm.VALUE,
        value="INSTANT",
        text="Read the dead letters of this commit. Without it, those of every commit on the active timeline are read.",
    ),
    JobFlag(
        flag="--dead-letters",
        field="dead_letters",
        form=FlagForm.VALUE,
        value="URL",
        text="Read the dead letters of this folder, such as the folder `refused` of a failed run.",
    ),
    JobFlag(
        flag="--output",
        field="output",
        form=FlagForm.VALUE,
        value="[text|json]",
        text="Text for people (the default), or the JSON of the JobReport for programs.",
    ),
    JobFlag(
        flag="--full-refresh",
        field="full_refresh",
        form=FlagForm.SWITCH,
        text="Ingest again what earlier commits contain.",
    ),
    JobFlag(
        flag="--every",
        field="every",
        form=FlagForm.VALUE,
        value="DURATION",
        text="Time between the starts of two commits; the default is that of the spec, or 1m.",
    ),
    JobFlag(
        flag="--run-for",
        field="run_for",
        form=FlagForm.VALUE,
        value="DURATION",
        text="Time after which the stream ends; the default is that of the spec, or no end.",
    ),
    JobFlag(
        flag="--resnapshot",
        field="resnapshot",
        form=FlagForm.REPEATED,
        value="TABLE",
        text="Read this table of a database again from its first row, such as shop.orders; repeatable.",
    ),
    JobFlag(flag="--force", field="force", form=FlagForm.SWITCH, text="Run although nothing is due."),
    JobFlag(
        flag="--check",
        field="check",
        form=FlagForm.SWITCH,
        text="Check the command, the table and the access to its storage, and run nothing.",
    ),
    JobFlag(
        flag="--end-if-idle",
        field="end_if_idle",
        form=FlagForm.SWITCH,
        text="With --check: end the run here, with its report, if its source has no new data. No Spark starts.",
    ),
    JobFlag(
        flag="--debug",
        field="debug",
        form=FlagForm.SWITCH,
        text="Print the traceback of an error.",
    ),
    JobFlag(
        flag="--option",
        field="options",
        form=FlagForm.PAIRS,
        value="KEY=VALUE",
        text="A hoodie.* option for this run; repeatable. `lakehouse options` lists them.",
    ),
)

#: Flags of publication jobs only.
PUBLISH_FLAGS = (
    JobFlag(
        flag="--pointers-only",
        field="pointers_only",
        form=FlagForm.SWITCH,
        text="Publish without copies of files, so that no Spark is needed.",
    ),
    JobFlag(
        flag="--newest",
        field="newest",
        form=FlagForm.SWITCH,
        text="Publish the newest version, not the version by event time.",
    ),
    JobFlag(
        flag="--archive-now",
        field="archive_now",
        form=FlagForm.SWITCH,
        text="Copy the partitions to the archive, regardless of their age.",
    ),
)
ALL_FLAGS = (*JOB_FLAGS, *PUBLISH_FLAGS)
