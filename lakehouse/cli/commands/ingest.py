"""`lakehouse ingest`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import Count, job_flags, output, table, value
from lakehouse.spec.job_command import IngestCommand, ReplayCommand, StreamCommand

_TEXT = """Ingest the new files of the spec's source into its table, in one commit; a missing table is created.

With `mode: upsert` a row replaces the stored one of its record key in the same partition. A record key is unique in
each partition, as in Hudi: a row whose partition column changed becomes a second row, unless the spec declares a
global index (`index: global_simple`) or no partitions. `lakehouse table validate --keys global` finds such keys.
"""

_STREAM = """Ingest continuously: one commit every minute, in one long-lived job.

Each commit is that of `ingest run`, and the next one continues from its checkpoint, so a stream that is killed loses
and repeats nothing. After a commit that left records behind, because of the limits of the spec, the next one follows
at once. At most one stream writes to a table. SIGTERM and Ctrl-C end the stream after the commit that is under way.
"""

_REPLAY = """Parse dead letters again and write the records that parse now, in one commit that names the letters.

Repair the cause first: the spec, its schema or the schema registry. Letters that are still bad stay dead letters, of
the new commit. Letters that a commit has replayed are not read again. The ordering column keeps a replayed record from
replacing a newer row; a table that is upserted without one needs --force.
"""

_SPEC = "The table spec (YAML)."
_INPUT = "The input, of a spec with several."

_STOP = """Ask the stream of a table to end after the commit that is under way.

The request is a file beside the lease of the stream, so that it works from any host. A stream finds it within 20
seconds, or at once if it runs on this host. If its commit has not ended after --within, the stream ends without it, and
the next one reads the same records again. To keep a DAG from starting the next stream, pause the DAG.
"""

_COMMITS = """Show the newest commits of an ingestion, on the active timeline: run, data interval, rows and bad records.

Airflow's tasks read them to emit the asset events of commits whose task ended before it could.
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
                "Show the stream of a table: whether it runs, its last commit, and the lag of its source.",
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
                    value("--target", "The table, of a spec that fills several.", metavar="NAME"),
                    value("--limit", "The largest number of commits.", type=Count(1), default=20),
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
                    value("--run-id", "Id of the stream; the default is the one that runs.", metavar="ID"),
                    value("--within", "Time that the commit has to end.", metavar="DURATION", default="2m"),
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
