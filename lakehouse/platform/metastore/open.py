"""Open the metastore in a policy or the environment; its client is an extra package."""

from __future__ import annotations

import os
from importlib import import_module

from lakehouse.errors import UserError
from lakehouse.platform.metastore.addresses import metastore_addresses
from lakehouse.platform.metastore.protocol import Metastore
from lakehouse.spec.options.sync import METASTORE_URIS, METASTORE_VARIABLE, SyncPolicy


def open_metastore(policy: SyncPolicy, *, purpose: str = "metastore sync", override: str = "") -> Metastore:
    """Return a client for the metastore in `override`, the policy or the environment; does not connect yet.

    Args:
        policy: the policy of metastore sync.
        purpose: the reason why the metastore is needed, for error messages.
        override: addresses that take precedence over the policy's.

    Raises:
        UserError: no address is configured, or the client is not installed.
    """
    uris = override or policy.uris or os.environ.get(METASTORE_VARIABLE, "")
    if not uris:
        raise UserError(
            f"{purpose}: no metastore is configured; set the option {METASTORE_URIS} or the variable "
            f"{METASTORE_VARIABLE}, such as thrift://host:9083",
            option=METASTORE_URIS,
        )
    try:
        # Imported here because the client is needed only if a metastore is used.
        hive = import_module("lakehouse.platform.metastore.hive")
    except ModuleNotFoundError as error:
        raise UserError(
            f"{purpose} needs a package that is not installed: {error.name}; pip install 'lakehouse-tables[hive]'"
        ) from error
    opened: Metastore = hive.HiveMetastore(metastore_addresses(uris, os.environ), timeout_s=policy.timeout_s)
    return opened
