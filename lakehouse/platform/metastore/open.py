"""From what a policy, or the environment, says of a metastore to its client, which is an extra package."""

from __future__ import annotations

import os
from importlib import import_module

from lakehouse.errors import UserError
from lakehouse.platform.metastore.protocol import Metastore
from lakehouse.spec.options.sync import METASTORE_URIS, METASTORE_VARIABLE, SyncPolicy


def open_metastore(policy: SyncPolicy, *, what: str = "metastore sync", also: str = "") -> Metastore:
    """Return the metastore of `also`, else of the policy, else of the environment; nothing is asked of it yet.

    Raises UserError, saying for `what`, if none of them names one, or its client is not installed.
    """
    uris = also or policy.uris or os.environ.get(METASTORE_VARIABLE, "")
    if not uris:
        raise UserError(
            f"{what}: no metastore is named; set the option {METASTORE_URIS} or the variable {METASTORE_VARIABLE}, "
            "such as thrift://host:9083",
            option=METASTORE_URIS,
        )
    try:
        # Here, and not above: who asks no metastore needs no client of one.
        hive = import_module("lakehouse.platform.metastore.hive")
    except ModuleNotFoundError as error:
        raise UserError(
            f"{what} needs a package that is not installed: {error.name}; pip install 'lakehouse[hive]'"
        ) from error
    opened: Metastore = hive.HiveMetastore(uris, timeout_s=policy.timeout_s)
    return opened
