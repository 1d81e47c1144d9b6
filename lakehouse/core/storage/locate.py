"""Open the store of a location that a user gives."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.local_sync import FSYNC_OPTION, parse_fsync
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.object_options import parse_object_location
from lakehouse.core.storage.objects import ObjectStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError, nearest
from lakehouse.model.texts import require_encodable

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?=/)")
_OBJECT_STORES = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), "az"),
}
#: Schemes of stores with the interface of S3.
_RELATIVES = {"oss": "oss", "cosn": "cosn", "cos": "cosn", "obs": "obs"}
_REFUSED = {
    "webhdfs": "WebHDFS has no atomic rename without overwriting; write hdfs://host:8020/path, with the port of RPC",
    "swebhdfs": "WebHDFS has no atomic rename without overwriting; write hdfs://host:8020/path, with the port of RPC",
    "http": "tables are on file systems and object stores; write s3://bucket/path and set the endpoint as an option",
    "https": "tables are on file systems and object stores; write s3://bucket/path and set the endpoint as an option",
}
_DBFS_MOUNT = "/dbfs"
_HDFS, _HDFS_MODULE = ("hdfs", "viewfs"), "lakehouse.core.storage.hdfs"
_KNOWN = ("file", "memory", *_OBJECT_STORES, *_RELATIVES, *_HDFS, "dbfs")


def open_storage(location: str, options: Mapping[str, str] = NO_OPTIONS, *, follow_links: bool = False) -> Storage:
    """Return the store below a location: a path, `file:`, `memory://name`, `s3://`, `gs://`, `abfss://`, `hdfs://`...

    No request is sent. Options are described in `object_options` and `hdfs_options`; local stores have the option
    `lakehouse.storage.fsync`. With `follow_links` symbolic links below a local directory are followed; the caller must
    trust the directory.
    """
    if not location:
        raise UserError("the location is empty; give a path or a URL such as s3://bucket/path")
    require_encodable(location, "location")
    if "\0" in location:
        raise UserError(f"location {location!r} contains a null character, which no storage accepts", location=location)
    fsync = parse_fsync(options[FSYNC_OPTION]) if FSYNC_OPTION in options else None
    match = _SCHEME.match(location)
    if match is None:
        return LocalStorage(location.removeprefix("file:"), follow_links=follow_links, fsync=fsync)
    scheme = match[1].lower()
    if scheme == "file":
        return LocalStorage(_local_path(location), follow_links=follow_links, fsync=fsync)
    if scheme == "dbfs":
        return LocalStorage(_mounted(location), follow_links=follow_links, fsync=fsync)
    if not location[match.end() :].startswith("//"):
        raise UserError(f"location {location!r} needs two slashes after {scheme}:", location=location)
    if scheme == "memory":
        return MemoryStorage("memory" + location[len(scheme) :])
    if scheme in _OBJECT_STORES:
        return ObjectStorage(parse_object_location(_OBJECT_STORES[scheme], location), options)
    if scheme in _RELATIVES:
        relative = _RELATIVES[scheme]
        return ObjectStorage(parse_object_location("s3", location, relative=relative), options)
    if scheme in _HDFS:
        # Few processes use HDFS, so that others do not load its modules.
        opened: Storage = import_module(_HDFS_MODULE).open_hdfs(location, options, fsync=bool(fsync))
        return opened
    if scheme in _REFUSED:
        raise UserError(f"location {location!r} cannot be used: {_REFUSED[scheme]}", location=location)
    raise UserError(
        f"unknown scheme {scheme!r} in location {location!r}.{nearest(scheme, _KNOWN)} Known are "
        f"{', '.join(_KNOWN)}, and plain paths.",
        location=location,
        scheme=scheme,
    )


def open_beside(storage: Storage, location: str) -> Storage:
    """Return the store of another folder, which a table refers to, with the options and credentials of its own store.

    `location` is an absolute path or a URL. Symbolic links below a local folder are followed.
    """
    options = getattr(storage, "options", NO_OPTIONS)
    return open_storage(location, options, follow_links=True)


def _mounted(location: str) -> str:
    """Return the path of a `dbfs:` location below the mount of Databricks."""
    if not os.path.isdir(_DBFS_MOUNT):
        raise UserError(
            f"location {location!r} needs Databricks' mount {_DBFS_MOUNT}, which this host does not have. Write the "
            "location of the store itself, such as s3://bucket/path or abfss://container@account.dfs.core.windows.net/path.",
            location=location,
        )
    return f"{_DBFS_MOUNT}/{location.partition(':')[2].lstrip('/')}"


def _local_path(location: str) -> str:
    path = location.partition(":")[2]
    if not path.startswith("//"):
        return path
    host, slash, rest = path[2:].partition("/")
    if host not in ("", "localhost"):
        raise UserError(f"location {location!r} names the host {host!r}; write file:///path", location=location)
    return slash + rest
