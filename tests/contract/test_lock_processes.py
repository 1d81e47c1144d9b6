"""Locks of real processes that are killed or are suspended until their lease expires."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.errors import RetryableError
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.locks import Place, kinds
from tests.support.processes import forked

#: Without the provider `storage`, whose shortest lease is ten seconds. It shares its code with `filesystem`.
KINDS = ("filesystem-local", "sqlalchemy-sqlite", "sqlalchemy-postgresql", "zookeeper", "hivemetastore")
LEASE_MS = 1_500

each = pytest.mark.parametrize("place", kinds(KINDS), indirect=True)


def hold(root: str, policy: TransactionPolicy, pipe: Connection) -> None:
    """Take the lock, and check and release it on request; runs in a separate process."""
    lock = TableLock(Env(storage=open_storage(root)), policy)
    lock.acquire()
    pipe.send(lock.token)
    pipe.recv()
    try:
        lock.check()
        pipe.send("held")
    except RetryableError as error:
        pipe.send(str(error))
    lock.release()
    pipe.send("released")
    pipe.recv()


@contextmanager
def holder(place: Place, policy: TransactionPolicy) -> Iterator[tuple[BaseProcess, Connection, int]]:
    """Yield a process that holds the lock, a connection to it, and its fencing token."""
    ours, theirs = multiprocessing.Pipe()
    processes = forked()
    child = processes.Process(target=hold, args=(place.storage.root, policy, theirs))
    child.start()
    theirs.close()
    try:
        yield child, ours, ours.recv()
    finally:
        child.kill()
        child.join()
        ours.close()


def successor(place: Place, policy: TransactionPolicy) -> TableLock:
    """Wait for the lock in this process and return it."""
    lock = TableLock(Env(storage=place.storage), replace(policy, lock=replace(policy.lock, wait_ms=60_000)))
    lock.acquire()
    return lock


@each
def test_lock_of_a_killed_process_is_taken_over(place: Place) -> None:
    policy = replace(place.policy, lock=replace(place.policy.lock, lease_ms=60_000))
    with holder(place, policy) as (child, _, token):
        child.kill()
        child.join()
        lock = successor(place, policy)
        assert lock.token > token
        lock.check()
        lock.release()


@each
def test_suspended_process_loses_the_lock_and_does_not_release_that_of_its_successor(place: Place) -> None:
    policy = replace(place.policy, lock=replace(place.policy.lock, lease_ms=LEASE_MS))
    with holder(place, policy) as (child, pipe, token):
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)
        lock = successor(place, policy)
        assert lock.token > token
        os.kill(child.pid, signal.SIGCONT)
        pipe.send("go on")
        assert "was lost to" in pipe.recv()
        assert pipe.recv() == "released"
        lock.check()
        lock.release()


@each
def test_process_that_resumes_in_time_still_holds_the_lock(place: Place) -> None:
    with holder(place, place.policy) as (_, pipe, _):
        pipe.send("go on")
        assert pipe.recv() == "held"
        assert pipe.recv() == "released"
        lock = successor(place, place.policy)
        lock.check()
        lock.release()
