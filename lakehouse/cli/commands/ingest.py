"""`lakehouse ingest`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import Count, job_flags, output, table, value
from lakehouse.spec.job_command import IngestCommand, ReplayCommand, StreamCommand

_TEXT = """Ingest the new files of the spec's source into its table, in one commit; a missing table is created.

With `mode: upsert` a row replaces the stored row with the same record key and partition. A record key is unique in
each partition, as in Hudi: a row whose partition column changed becomes a second row, unless the spec declares a
global index (`index: global_simple`) or no partitions. `lakehouse table validate --keys global` finds such keys.
"""

_STREAM = """Ingest continuously: one commit every minute, in one long-lived job.

Each commit equals one `ingest run`, and the next one continues from its checkpoint, so a stream that is killed loses
and repeats nothing. If the limits of the spec left records unread, the next commit follows immediately. At most one
stream writes to a table. SIGTERM and Ctrl-C end the stream after the current commit.
"""

_REPLAY = """Parse dead letters again and write the records that now parse, in one commit that lists the letters.

Repair the cause first: the spec, its schema or the schema registry. Letters that are still bad become dead letters of
the new commit. Letters that a commit already replayed are not read again. The ordering column prevents that a replayed
record replaces a newer row; a table with upserts and no ordering column needs --force.
"""

_SPEC = "The table spec (YAML)."
_INPUT = "The name of the input, if the spec has several."

_STOP = """Request that the stream of a table ends after the current commit.

The request is a file next to the stream's lease, so it works from any host. The stream reads it within 20
seconds, or immediately on this host. If the commit has not ended after --within, the stream abandons it, and
the next stream reads the same records again. To keep a DAG from starting the next stream, pause the DAG.
"""

_COMMITS = """Show the newest commits of an ingestion, on the active timeline: run, data interval, rows and bad records.

Airflow tasks read them to emit asset events for commits whose task ended before it emitted them.
"""

COMMANDS: dict[str, click.Command] = {
    "ingest": Group(
        "ingest",
        "Ingest the new files of a spec's source in one commit.",
        [
            Command(
                "run",
                "ingest:ingest",
                _TEXT,
                job_flags(IngestCommand),
                examples=(
                    "lakehouse ingest run --table orders.yaml",
                    "lakehouse ingest run --table orders.yaml --interval-start 2026-01-01 --interval-end 2026-01-02",
                ),
                noun="ingest",
                verb="run",
            ),
            Command(
                "stream",
                "ingest:stream",
                _STREAM,
                job_flags(StreamCommand),
                examples=(
                    "lakehouse ingest stream --table orders.yaml",
                    "lakehouse ingest stream --table orders.yaml --every 30s --run-for 1h",
                ),
                noun="ingest",
                verb="stream",
            ),
            Command(
                "status",
                "stream:show_status",
                "Show the stream of a table: whether it runs, its last commit, and its lag behind the source.",
                [table(_SPEC), value("--input", _INPUT, metavar="NAME"), output()],
                examples=("lakehouse ingest status --table orders.yaml",),
            ),
            Command(
                "commits",
                "ingest_commits:show_commits",
                _COMMITS,
                [
                    table(_SPEC),
                    value("--input", _INPUT, metavar="NAME"),
                    value("--target", "The name of the table, if the spec fills several.", metavar="NAME"),
                    value("--limit", "Maximum number of commits.", type=Count(1), default=20),
                    output(),
                ],
                examples=("lakehouse ingest commits --table orders.yaml",),
            ),
            Command(
                "stop",
                "stream:stop",
                _STOP,
                [
                    table(_SPEC),
                    value("--input", _INPUT, metavar="NAME"),
                    value("--run-id", "Id of the stream. Default: the running stream.", metavar="ID"),
                    value(
                        "--within", "Time within which the current commit must end.", metavar="DURATION", default="2m"
                    ),
                    output(),
                ],
                examples=("lakehouse ingest stop --table orders.yaml",),
            ),
            Command(
                "replay",
                "ingest:replay",
                _REPLAY,
                job_flags(ReplayCommand),
                examples=(
                    "lakehouse ingest replay --table orders.yaml",
                    "lakehouse ingest replay --table orders.yaml --dead-letters orders_dead_letters/run-1a2b/refused",
                ),
                noun="ingest",
                verb="replay",
            ),
        ],
    )
}
