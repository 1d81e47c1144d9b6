"""Locations and settings of HDFS.

    hdfs://host:8020/path     one namenode; the port 8020 may be omitted
    hdfs://nameservice/path   a nameservice of hdfs-site.xml, with one or several namenodes
    hdfs:///path              the file system of fs.defaultFS
    viewfs://table/path       a mount table of core-site.xml

Settings come from core-site.xml and hdfs-site.xml in HADOOP_CONF_DIR (or $HADOOP_HOME/etc/hadoop), and from options
with the same names, with or without the prefix `spark.hadoop.`. Options take precedence. The settings that a client
needs are pickled with a store, so that executors need no configuration directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from lakehouse.core.storage.local_sync import FSYNC_OPTION
from lakehouse.errors import UserError, nearest

DEFAULT_PORT = 8020
AUTHENTICATION, KERBEROS = "hadoop.security.authentication", "kerberos"
_DEFAULT_FS = "fs.defaultFS"
_CONF_DIR, _HOME = "HADOOP_CONF_DIR", "HADOOP_HOME"
_MOUNTS = "fs.viewfs.mounttable"
_LINK = re.compile(rf"{re.escape(_MOUNTS)}\.([^.]+)\.link\.(/.*)")
_FILES = ("core-site.xml", "hdfs-site.xml")
#: Settings that clients use. Others, such as the keys of object stores, stay in their files.
_CLIENT_SETTINGS = re.compile(
    r"fs\.defaultFS|fs\.viewfs\..+|dfs\.(?!namenode\.(?!rpc-address)|datanode\.|journalnode\.).+|hadoop\.security\..+"
    r"|hadoop\.rpc\.protection"
)
#: Names that other file systems, Spark and this package use.
_FOREIGN = re.compile(r"(fs|ipc|hadoop|io|ha|yarn|mapreduce)\..+|(aws|google|azure)_.+|allow_http|max_attempts", re.I)
#: About 20 s, which a failover takes; Hadoop's own defaults wait for several minutes.
_PATIENCE = {"dfs.client.failover.max.attempts": "7", "dfs.client.failover.sleep.max.millis": "5000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsLocation:
    """A directory of a file system: `authority` is host:port, a nameservice or a mount table, `path` is absolute."""

    scheme: str
    authority: str
    path: str

    @property
    def root(self) -> str:
        """The location with one spelling: without the default port and without a slash at the end."""
        return f"{self.scheme}://{self.authority}{self.path.rstrip('/')}"

    @property
    def above(self) -> HdfsLocation | None:
        """The parent directory; None for the root of the file system."""
        plain = self.path.rstrip("/")
        if not plain:
            return None
        return HdfsLocation(scheme=self.scheme, authority=self.authority, path=plain.rpartition("/")[0] or "/")

    def url(self, settings: Mapping[str, str]) -> str:
        """Return the URL for the client: a host needs a port, a nameservice has none."""
        is_name = self.scheme != "hdfs" or ":" in self.authority or is_nameservice(self.authority, settings)
        return f"{self.scheme}://{self.authority}" + ("" if is_name else f":{DEFAULT_PORT}")


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of clients from the configuration directory and options; options take precedence.

    Raises UserError for an option that no storage knows.
    """
    settings = {**_PATIENCE, **_configured()}
    for name, value in options.items():
        plain = name.removeprefix("spark.hadoop.")
        if _CLIENT_SETTINGS.fullmatch(plain):
            settings[plain] = str(value)
        elif plain != FSYNC_OPTION and not _FOREIGN.fullmatch(plain) and not plain.startswith("dfs."):
            raise UserError(
                f"unknown storage option {name!r}.{nearest(plain, (_DEFAULT_FS, 'dfs.nameservices', FSYNC_OPTION))} "
                f"Options of HDFS are fs.defaultFS, fs.viewfs.*, dfs.*, hadoop.security.* and {FSYNC_OPTION}.",
                option=name,
            )
    return settings


def parse_hdfs_location(location: str, settings: Mapping[str, str]) -> HdfsLocation:
    """Split `hdfs://authority/path`; an empty authority is the one of fs.defaultFS."""
    scheme, _, rest = location.partition("://")
    scheme = scheme.lower()
    authority, slash, path = rest.partition("/")
    path = slash + path.rstrip("/")
    if "//" in path or any(segment in (".", "..") for segment in path.split("/")):
        raise UserError(f"location {location!r} must not contain '//', '.' or '..' in its path", location=location)
    if "@" in authority:
        raise UserError(
            f"location {location!r} contains a user; set the environment variable HADOOP_USER_NAME instead",
            location=location,
        )
    authority = authority or _default_authority(location, scheme, settings)
    if not is_nameservice(authority, settings):
        authority = authority.lower().removesuffix(f":{DEFAULT_PORT}") if scheme == "hdfs" else authority
    if scheme == "viewfs":
        _check_mount(location, authority, path, settings)
    return HdfsLocation(scheme=scheme, authority=authority, path=path or "/")


def with_fallbacks(settings: Mapping[str, str]) -> dict[str, str]:
    """Add the fallback that hdfs-native needs to mount tables without one; no location leads there (`_check_mount`)."""
    fallbacks = {
        f"{_MOUNTS}.{match[1]}.linkFallback": "/".join(value.split("/")[:3]) + "/"
        for name, value in settings.items()
        if (match := _LINK.fullmatch(name))
    }
    return {**fallbacks, **settings}


def is_nameservice(authority: str, settings: Mapping[str, str]) -> bool:
    """Return whether the settings list namenodes for the name."""
    return f"dfs.ha.namenodes.{authority}" in settings


def namenodes(location: HdfsLocation, settings: Mapping[str, str]) -> tuple[tuple[str, int], ...]:
    """Return host and port of the namenodes of a location; none for a mount table, which has several file systems."""
    if location.scheme != "hdfs":
        return ()
    name = location.authority
    addresses = [name]
    if is_nameservice(name, settings):
        nodes = settings[f"dfs.ha.namenodes.{name}"].split(",")
        addresses = [settings.get(f"dfs.namenode.rpc-address.{name}.{node.strip()}", "") for node in nodes]
    pairs = [re.fullmatch(r"(.+?)(?::(\d+))?", address.strip()) for address in addresses]
    return tuple((pair[1].strip("[]"), int(pair[2] or DEFAULT_PORT)) for pair in pairs if pair)


def _default_authority(location: str, scheme: str, settings: Mapping[str, str]) -> str:
    default = settings.get(_DEFAULT_FS, "")
    default_scheme, _, rest = default.partition("://")
    authority = rest.partition("/")[0]
    if default_scheme.lower() != scheme or not authority:
        source = os.environ.get(_CONF_DIR) or "not set"
        raise UserError(
            f"location {location!r} has no host, and {_DEFAULT_FS} is {default or 'not set'} ({_CONF_DIR}: {source}). "
            f"Write {scheme}://host:port/path, or set {_CONF_DIR} to the directory with core-site.xml.",
            location=location,
        )
    return authority


def _check_mount(location: str, table: str, path: str, settings: Mapping[str, str]) -> None:
    links = {match[2] for name in settings if (match := _LINK.fullmatch(name)) and match[1] == table}
    if f"{_MOUNTS}.{table}.linkFallback" in settings:
        return
    if not any(f"{path}/".startswith(link.rstrip("/") + "/") for link in links):
        raise UserError(
            f"location {location!r} is below no link of the mount table {table!r}; its links are "
            f"{', '.join(sorted(links)) or 'none'}. Add {_MOUNTS}.{table}.link.<path> to core-site.xml.",
            location=location,
        )


def _configured() -> dict[str, str]:
    directory = os.environ.get(_CONF_DIR) or ""
    if not directory and os.environ.get(_HOME):
        directory = f"{os.environ[_HOME]}/etc/hadoop"
    settings: dict[str, str] = {}
    for name in _FILES if directory else ():
        settings.update(_read_site(Path(directory) / name))
    return {name: value for name, value in settings.items() if _CLIENT_SETTINGS.fullmatch(name)}


def _read_site(file: Path) -> dict[str, str]:
    """Return the properties of a configuration file; none if it does not exist."""
    try:
        document = ElementTree.fromstring(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ElementTree.ParseError) as error:
        raise UserError(f"the configuration {str(file)!r} cannot be read: {error}", path=str(file)) from error
    pairs = ((entry.findtext("name"), entry.findtext("value")) for entry in document.iter("property"))
    return {name.strip(): value.strip() for name, value in pairs if name and value}
