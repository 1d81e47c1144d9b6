"""`airflow lakehouse setup`: the command that this package adds to Airflow's command line.

Every `airflow` command loads this module, so it imports nothing else.
"""

from __future__ import annotations

from airflow.cli.cli_config import ActionCommand, Arg, CLICommand, GroupCommand, lazy_load_command

from lakehouse_airflow.pools import POOLS

_SLOTS = tuple(
    Arg(
        (setting.flag,),
        help=f"slots of the pool {setting.name}; default: ${setting.variable}, or else {setting.slots}",
        metavar="N",
    )
    for setting in POOLS
)
_POOL = Arg(
    ("--pool",),
    help="an additional pool, such as the pool in ingest.pool of a spec; may be repeated",
    metavar="NAME=SLOTS",
    action="append",
    default=[],
)
_SPECS = Arg(
    ("--specs",),
    help="folder of table specs; may be repeated; default: $LAKEHOUSE_SPECS, or else `tables` in the DAGs folder",
    metavar="FOLDER",
    action="append",
    default=[],
)


def commands() -> list[CLICommand]:
    """Return the lakehouse commands for Airflow's command line."""
    return [
        GroupCommand(
            name="lakehouse",
            help="Set up lakehouse in this Airflow",
            subcommands=(
                ActionCommand(
                    name="setup",
                    help="Create missing pools and the folder of reports",
                    description="Create missing pools that lakehouse DAGs need, and the private "
                    "folder of job reports. Existing pools keep their slots, so the command may be repeated.",
                    func=lazy_load_command("lakehouse_airflow.setup_deployment.setup"),
                    args=(*_SLOTS, _POOL, _SPECS),
                ),
            ),
        )
    ]
