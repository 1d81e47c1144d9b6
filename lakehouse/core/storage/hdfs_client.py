"""Clients of hdfs-native, one for each file system in a process.

A client has threads and connections, which do not survive `fork`: in a child the parent's client would wait forever,
and a new client sometimes does. So a forked child whose parent used HDFS gets a UserError, as with object stores.
Spark's Python workers are forked from a process that uses no store.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

from lakehouse.core.storage.hdfs_errors import (
    USER_VARIABLE,
    current_user,
    is_cut,
    is_hdfs_error,
    is_passing,
    translate,
)
from lakehouse.core.storage.hdfs_options import (
    AUTHENTICATION,
    KERBEROS,
    HdfsLocation,
    namenodes,
    with_fallbacks,
)
from lakehouse.core.storage.object_swap import FIRST_PAUSE_S, LONGEST_PAUSE_S
from lakehouse.core.system.clock import WaitClock
from lakehouse.errors import UserError

T = TypeVar("T")
Key = tuple[int, str, str, tuple[tuple[str, str], ...]]
ATTEMPTS = 6
#: The RPC header of a client that signs in by SASL, and its message that asks for the methods of the namenode.
_METHODS_REQUEST = b"hrpc\x09\x00\xdf" + bytes.fromhex("0000000e0a08021000184122002801021001")
_PROBE_S = 1.0

_user_of_threads: int | None = None
# The entries of a parent process stay, because releasing its clients would wait for threads that do not exist.
_clients: dict[Key, Any] = {}


class HdfsClient:
    """Requests to one file system with bounded retries; `user` acts if the process sets no other."""

    def __init__(self, location: HdfsLocation, settings: Mapping[str, str], user: str, clock: WaitClock) -> None:
        self._url, self._root = location.url(settings), location.root
        self._settings = {**settings}
        self._namenodes = namenodes(location, settings)
        self._user, self._clock = user, clock
        self._entries = tuple(sorted(self._settings.items()))

    def call(self, request: Callable[[Any], T], path: str, *, writing: bool = False) -> T:
        """Send a repeatable request; repeat it if its connection breaks, in safe mode and on standby.

        Raises lakehouse errors.
        """
        for attempt in range(ATTEMPTS):
            try:
                return request(self.native())
            except BaseException as error:
                if not is_hdfs_error(error):
                    raise
                if not (is_passing(error) or is_cut(error)) or attempt + 1 == ATTEMPTS:
                    raise translate(error, path, self._root, writing=writing) from error
            self.pause(attempt)
        raise AssertionError("the loop returns or raises")

    def pause(self, attempt: int) -> None:
        """Wait after a failed attempt, longer after each; the first has the number 0."""
        self._clock.sleep(min(FIRST_PAUSE_S * 2**attempt, LONGEST_PAUSE_S))

    def native(self) -> Any:
        """Return the client of this process; no request is sent."""
        global _user_of_threads  # noqa: PLW0603 (the threads are the process's, too)
        process = os.getpid()
        if _user_of_threads not in (None, process):
            raise UserError(
                f"{self._root} cannot be used in a process forked after its parent used HDFS; start processes with "
                "multiprocessing's 'spawn', or use the store only in the children.",
                root=self._root,
            )
        _user_of_threads = process
        key = (process, current_user(), self._url, self._entries)
        client = _clients.get(key)
        if client is None:
            # Two threads may open a client; both use the first one.
            client = _clients.setdefault(key, self._open())
        return client

    def _open(self) -> Any:
        if self._user != current_user():
            os.environ.setdefault(USER_VARIABLE, self._user)
        try:
            library = import_module("hdfs_native")
        except ImportError as error:
            raise UserError(
                f"{self._root} needs the package hdfs-native: install lakehouse-tables[hdfs] ({error})", root=self._root
            ) from error
        self._require_sign_in()
        try:
            return library.Client(self._url, with_fallbacks(self._settings))
        except BaseException as error:
            if not is_hdfs_error(error):
                raise
            raise translate(error, "", self._root, writing=False) from error

    def _require_sign_in(self) -> None:
        """Raise UserError if the namenode demands Kerberos and the settings do not have it.

        hdfs-native would take the refusal for a broken connection and repeat the request for minutes.
        """
        setting = self._settings.get(AUTHENTICATION, "")
        if setting.lower() == KERBEROS:
            return
        methods = next((reply for address in self._namenodes if (reply := _sign_in_methods(address))), b"")
        if b"KERBEROS" in methods and b"SIMPLE" not in methods:
            raise UserError(
                f"{self._root} demands Kerberos, and {AUTHENTICATION} is {setting or 'not set'}. Set it to {KERBEROS} "
                f"in core-site.xml of HADOOP_CONF_DIR ({os.environ.get('HADOOP_CONF_DIR') or 'not set'}) or as an "
                "option of the storage, and get a ticket with kinit.",
                root=self._root,
            )


def _sign_in_methods(address: tuple[str, int]) -> bytes:
    """Return the reply of a namenode with the names of its methods; empty if it does not answer."""
    try:
        with socket.create_connection(address, timeout=_PROBE_S) as connection:
            connection.sendall(_METHODS_REQUEST)
            return connection.recv(4096)
    except OSError:
        return b""
