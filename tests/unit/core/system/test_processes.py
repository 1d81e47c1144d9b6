"""Process identities in lease records: compared in one PID namespace, judged by their leases elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.system.processes import ProcessId, SystemProcesses
from lakehouse.core.timeline.expiry import is_active, lease_record
from lakehouse.core.timeline.heartbeat import Heartbeat, active_writes
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.errors import RetryableError
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import FilesystemLockOptions, SqlAlchemyLockOptions
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.tables import make_env
from tests.unit.core.timeline.test_table_lock import POLICY, Neighbours

INSTANT = "20250101000000000"
LEASE_MS = 10_000
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc tells boot, namespace and start time")


@linux
def test_current_process_has_boot_id_namespace_and_start_time() -> None:
    me = SystemProcesses().current()
    assert me.pid == os.getpid()
    assert all((me.host, me.boot, me.namespace.startswith("pid:["), me.started.isdigit()))
    assert ProcessId.from_record(json.loads(json.dumps(me.record))) == me


@linux
def test_process_is_running_until_it_ends_and_a_reused_number_is_another_process() -> None:
    processes = SystemProcesses()
    with subprocess.Popen(["sleep", "60"]) as child:
        started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        running = replace(processes.current(), pid=child.pid, started=started)
        assert processes.is_running(running)
        assert not processes.is_running(replace(running, started=str(int(started) - 1))), "the number was given again"
        child.kill()
    assert not processes.is_running(running)


@pytest.mark.parametrize(
    ("changed", "alive"),
    [
        ({}, False),
        ({"namespace": "pid:[2]"}, True),
        ({"boot": "another"}, True),
        ({"host": "elsewhere"}, True),
        ({"started": ""}, True),
        ({"boot": "", "namespace": "", "started": ""}, True),
    ],
)
def test_record_of_an_unobservable_process_is_active_until_it_expires(changed: dict[str, str], alive: bool) -> None:
    env = replace(make_env(), processes=Neighbours(pid=1))
    written = json.loads(lease_record(replace(env, processes=Neighbours(pid=2)), "owner", LEASE_MS))
    data = json.dumps({**written, **changed}).encode()
    assert is_active(env, data, now_ms=env.clock.now_ms()) is alive
    env.clock.sleep(LEASE_MS / 1000)
    assert not is_active(env, data, now_ms=env.clock.now_ms())


def test_record_of_an_earlier_version_is_active_until_it_expires() -> None:
    env = replace(make_env(), processes=Neighbours(pid=1))
    data = json.dumps({"owner": "o", "host": "here", "pid": 2, "until": env.clock.now + LEASE_MS}).encode()
    assert is_active(env, data, now_ms=env.clock.now_ms())
    env.clock.sleep(LEASE_MS / 1000)
    assert not is_active(env, data, now_ms=env.clock.now_ms())


@pytest.mark.parametrize("pid", [0, -1, -(10**30), 10**30])
def test_invalid_process_number_is_not_running(pid: int) -> None:
    # 0 and -1 stand for process groups, which exist.
    assert not SystemProcesses().is_running(replace(SystemProcesses().current(), pid=pid))


def test_reused_number_of_this_process_is_not_active() -> None:
    env = make_env()
    earlier = lease_record(replace(env, processes=Neighbours(pid=1, started="1")), "owner", LEASE_MS)
    assert not is_active(replace(env, processes=Neighbours(pid=1, started="2")), earlier, now_ms=env.clock.now_ms())
    assert is_active(replace(env, processes=Neighbours(pid=1, started="1")), earlier, now_ms=env.clock.now_ms())


@pytest.mark.parametrize("provider", ["filesystem", "sqlalchemy"])
def test_lock_and_heartbeat_of_another_container_are_respected(provider: str, tmp_path: Path) -> None:
    env = make_env()
    options = {
        "filesystem": FilesystemLockOptions(),
        "sqlalchemy": SqlAlchemyLockOptions(url=f"sqlite:///{tmp_path}/locks.db"),
    }[provider]
    policy = replace(POLICY, lock=LockPolicy.of(options, wait_ms=POLICY.lock.wait_ms, lease_ms=POLICY.lock.lease_ms))
    container = replace(env, processes=Neighbours(pid=7, namespace="pid:[2]"))
    here = replace(env, processes=Neighbours(pid=1))
    TableLock(container, policy).acquire()
    with pytest.raises(RetryableError, match="is held by"), table_lock(here, policy):
        pass
    beat = Heartbeat(container, policy)
    beat._path = f".hoodie/.heartbeat/{INSTANT}"
    beat.renew()
    assert active_writes(here, policy) == {INSTANT}


HOLD = """
import sys
from lakehouse.spec.options.transaction import TransactionPolicy
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.env import Env
from lakehouse.core.timeline.table_lock import table_lock
with table_lock(Env(storage=LocalStorage(sys.argv[1])), TransactionPolicy()):
    print("held", flush=True)
    sys.stdin.read()
"""


@linux
def test_lock_held_in_another_pid_namespace_of_this_host_is_not_taken_over(tmp_path: Path) -> None:
    container = ["unshare", "--pid", "--fork", "--mount-proc"]
    allowed = subprocess.run([*container, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode:
        pytest.skip(f"no PID namespace can be made here: {allowed.stderr.strip()}")
    command = [*container, sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        env = Env(storage=LocalStorage(str(tmp_path)))
        with (
            pytest.raises(RetryableError, match="is held by"),
            table_lock(env, TransactionPolicy(lock=LockPolicy(wait_ms=1))),
        ):
            pass
        holder.communicate("")
    with table_lock(env, TransactionPolicy(lock=LockPolicy(wait_ms=1))) as lock:
        lock.check()
