"""Checks of other services: Hive Metastores, and clients of lock providers."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from lakehouse.errors import LakehouseError, UserError
from lakehouse.model.display import count_text
from lakehouse.platform.doctor.deployment import Deployment
from lakehouse.platform.doctor.finding import Finding, combined, failed, ok
from lakehouse.platform.metastore.addresses import metastore_addresses
from lakehouse.spec.options.lock_providers import LOCK_PROVIDERS
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.sync import METASTORE_URIS, METASTORE_VARIABLE

#: Imported name of the client package that an extra installs.
_CLIENTS = {"zookeeper": "kazoo", "hive": "pymetastore"}
_METASTORE_S = 5.0
_URL = "lakehouse.lock.sqlalchemy.url"


def check_metastore(deployment: Deployment) -> Finding:
    """List the databases of each metastore."""
    return combined(
        (_ask_metastore(uris, users) for uris, users in _metastores(deployment).items()),
        f"neither {METASTORE_VARIABLE} nor a spec names a metastore",
    )


def check_lock_clients(deployment: Deployment) -> Finding:
    """Check that clients of the lock providers in specs are installed."""
    findings = []
    for place in deployment.places:
        try:
            policy = Policies().override(place.options).transaction.lock
        except UserError as error:
            findings.append(failed(f"{place.table}: {error}"))
            continue
        extra = LOCK_PROVIDERS[policy.provider].extra
        if extra and find_spec(_CLIENTS[extra]) is None:
            findings.append(
                failed(
                    f"{place.table}: the lock provider {policy.provider} needs the package {_CLIENTS[extra]}",
                    f"pip install 'lakehouse-tables[{extra}]'",
                )
            )
        elif policy.provider == "sqlalchemy":
            findings.append(_driver(place.table, place.options.get(_URL, "")))
        elif extra:
            findings.append(ok(f"{place.table}: {policy.provider}, with {_CLIENTS[extra]}"))
    return combined(findings, "no table uses a lock provider with a client")


def _metastores(deployment: Deployment) -> dict[str, str]:
    """Return the addresses of metastores, each with a table or variable that uses it."""
    metastores: dict[str, str] = {}
    if deployment.environ.get(METASTORE_VARIABLE):
        metastores[deployment.environ[METASTORE_VARIABLE]] = METASTORE_VARIABLE
    for spec in deployment.specs.specs:
        declared = spec.publication()
        for uris in ((declared.metastore if declared else ""), spec.options.get(METASTORE_URIS, "")):
            if uris:
                metastores.setdefault(uris, spec.table)
    return metastores


def _ask_metastore(uris: str, user: str) -> Finding:
    if find_spec(_CLIENTS["hive"]) is None:
        return failed(
            f"{uris} ({user}): the package {_CLIENTS['hive']} is missing", "pip install 'lakehouse-tables[hive]'"
        )
    # Imported here because the client is an optional package.
    module: Any = import_module("lakehouse.core.timeline.locks.metastore_client")
    try:
        addresses = metastore_addresses(uris, os.environ)
        client = module.MetastoreClient(addresses, option=METASTORE_URIS, timeout_s=_METASTORE_S)
        try:
            databases = client.call(lambda service: service.get_all_databases())
        finally:
            client.close()
    except LakehouseError as error:
        return failed(f"{uris} ({user}) does not answer within {_METASTORE_S:g} s: {error}")
    return ok(f"{uris} answers, with {count_text(len(databases), 'database')}")


def _driver(table: str, url: str) -> Finding:
    if "://" not in url:
        return ok(f"{table}: sqlalchemy, with a URL that jobs resolve")
    try:
        make_url(url).get_dialect().import_dbapi()
    except (SQLAlchemyError, ModuleNotFoundError, ValueError) as error:
        return failed(f"{table}: the lock provider sqlalchemy: {error}", "Install the driver of the lock's database.")
    return ok(f"{table}: sqlalchemy, with its driver")
