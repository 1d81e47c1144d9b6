"""Creates the requirements of the DAGs in this Airflow: missing pools, and the private folder of job reports.

Pools come from this package, from `ingest.pool` of the specs, and from parsed DAGs with the tag `lakehouse`. An
existing pool is never changed.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Mapping
from pathlib import Path

from airflow.models.pool import Pool
from airflow.utils.session import create_session

from lakehouse.errors import UserError
from lakehouse.spec.contracts.pools import PoolFacts
from lakehouse.spec.reports_folder import make_reports_folder
from lakehouse_airflow.missing_pools import pool_facts as facts_of_session
from lakehouse_airflow.pools import INGEST, POOLS, NamedPool, parse_slots, slots_of, spec_pools
from lakehouse_airflow.specs import dags_folder, load_specs, spec_directories


def setup(arguments: Namespace) -> None:
    """Run `airflow lakehouse setup`; exit with an error if a pool or the folder cannot be created."""
    try:
        folders = tuple(map(Path, arguments.specs)) or spec_directories(dags_folder())
        given = {setting.name: getattr(arguments, _attribute(setting.flag)) for setting in POOLS}
        lines = [
            *create_pools(needed_pools(given, arguments.pool, folders, os.environ)),
            f"folder of reports: {make_reports_folder(os.environ)}",
        ]
    except UserError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def needed_pools(
    slots: Mapping[str, str | None], pools: Iterable[str], folders: Iterable[Path], environ: Mapping[str, str]
) -> list[NamedPool]:
    """Return all pools that lakehouse DAGs need.

    Args:
        slots: Slots of this package's pools by pool name, from the command line; None means the default.
        pools: Additional pools as `NAME=SLOTS`.
        folders: Folders of specs; missing folders are ignored.
        environ: Environment with the default slots.
    """
    needed = {
        setting.name: NamedPool(
            name=setting.name,
            slots=slots_of(setting, slots.get(setting.name), environ),
            description=setting.description,
        )
        for setting in POOLS
    }
    for text in pools:
        name, _, count = text.partition("=")
        if not name or not count:
            raise UserError(f"--pool {text!r}: write NAME=SLOTS, such as --pool big_tables=2")
        needed[name] = NamedPool(name=name, slots=parse_slots(count, f"--pool {name}"), description="Named by a spec")
    specs = load_specs(tuple(folder for folder in folders if folder.is_dir())).good
    for name, tables in spec_pools(specs).items():
        shown = f"Ingestion of {', '.join(tables[:3])}{' and others' if len(tables) > 3 else ''}"
        needed.setdefault(
            name, NamedPool(name=name, slots=slots_of(INGEST, slots.get(INGEST.name), environ), description=shown)
        )
    for name in pool_facts().needed:
        needed.setdefault(name, NamedPool(name=name, slots=INGEST.slots, description="Named by a DAG of lakehouse"))
    return list(needed.values())


def create_pools(pools: Iterable[NamedPool]) -> list[str]:
    """Create missing pools; return one line with the result per pool."""
    lines = []
    with create_session() as session:
        slots = {pool.pool: pool.slots for pool in session.query(Pool).all()}
        for pool in pools:
            if pool.name in slots:
                lines.append(f"pool {pool.name}: exists with {slots[pool.name]} slots, not changed")
                continue
            Pool.create_or_update_pool(pool.name, pool.slots, pool.description, False, session=session)
            lines.append(f"pool {pool.name}: created with {pool.slots} slots")
    return lines


def pool_facts() -> PoolFacts:
    """Return the pools of this Airflow, and the pools that parsed lakehouse DAGs need."""
    with create_session() as session:
        return facts_of_session(session)


def _attribute(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_")
