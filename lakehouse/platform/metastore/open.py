"""Open the metastore in a policy or the environment; its client is an extra package: `hive` or `glue`."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from lakehouse.errors import UserError
from lakehouse.platform.metastore.addresses import metastore_addresses
from lakehouse.platform.metastore.protocol import Metastore
from lakehouse.spec.options.sync import METASTORE_URIS, METASTORE_VARIABLE, SyncPolicy


def open_metastore(policy: SyncPolicy, *, purpose: str = "metastore sync", override: str = "") -> Metastore:
    """Return a client for the metastore in `override`, the policy or the environment; does not connect yet.

    A policy of AWS Glue needs no address.

    Args:
        policy: the policy of metastore sync.
        purpose: the reason why the metastore is needed, for error messages.
        override: addresses that take precedence over the policy's.

    Raises:
        UserError: no address is configured, or the client is not installed.
    """
    if policy.is_glue and not override:
        glue: Metastore = _client("glue", "glue", purpose).open_glue(policy)
        return glue
    uris = override or policy.uris or os.environ.get(METASTORE_VARIABLE, "")
    if not uris:
        raise UserError(
            f"{purpose}: no metastore is configured; set the option {METASTORE_URIS} or the variable "
            f"{METASTORE_VARIABLE}, such as thrift://host:9083",
            option=METASTORE_URIS,
        )
    client = _client("hive", "hive", purpose)
    opened: Metastore = client.HiveMetastore(
        metastore_addresses(uris, os.environ), timeout_s=policy.timeout_s, page=policy.batch
    )
    return opened


def _client(module: str, extra: str, purpose: str) -> Any:
    try:
        # Imported here because the client is needed only if a metastore is used.
        return import_module(f"lakehouse.platform.metastore.{module}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"{purpose} needs a package that is not installed: {error.name}; pip install 'lakehouse-tables[{extra}]'"
        ) from error
