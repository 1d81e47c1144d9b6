"""Mutants of the 52 most important lines: for each one a named test must fail.

A mutant replaces a text that occurs once in its file. A mutant survives if its tests pass, and is out of date if its
text does not occur. Both fail the run, because no test then protects the line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

_ROOT = Path(__file__).parents[2]
_COPIED = ("lakehouse", "demo", "tests", "plugins", "pyproject.toml", "README.md")
_FAILED = 1
_LONGEST_S = 600


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file of the package, a text in it, the replacement, and the tests that must fail."""

    file: str
    text: str
    mutated: str
    tests: str

    @property
    def name(self) -> str:
        """Return the file and the first line of the text."""
        return f"{self.file}: {self.text.strip().splitlines()[0]}"


CONFLICT = "tests/unit/core/planning/test_conflict.py"
VIEW = "tests/unit/core/state/test_file_system_view.py"
CLEAN = "tests/unit/core/planning/test_clean.py"
ARCHIVE = "tests/unit/core/planning/test_archive.py"
DAMAGE = "tests/unit/core/operations/test_damage.py"
CLEANUP = "tests/unit/core/operations/test_cleanup.py"
CHECKPOINT = "tests/unit/platform/sources/test_file_checkpoint.py"
LOCK = "tests/unit/core/timeline/test_table_lock.py"
INSTANTS = "tests/unit/core/timeline/test_instants.py"
HEARTBEAT = "tests/unit/core/timeline/test_heartbeat.py"
TIMELINE = "tests/unit/model/test_timeline.py"
ROLLBACK = "tests/unit/core/operations/test_rollback.py"
BLOCKS = "tests/unit/core/format/test_log_blocks.py"
RESTORE = "tests/unit/core/operations/test_restore.py"
CLAIMS = "tests/unit/core/timeline/test_claims.py"
BOUNDARY = "tests/unit/core/state/test_archive_boundary.py"
RECORDING = "tests/unit/core/metadata/test_recording.py"
READING = "tests/unit/core/metadata/test_reading.py"
STATISTICS = "tests/unit/core/metadata/test_statistics.py"
UNDONE_WRITES = "tests/reports/test_metadata_of_undone_writes.py"

MUTANTS: tuple[Mutant, ...] = (
    # Conflict check.
    Mutant(
        "core/planning/conflict.py",
        "        both = ours.groups & theirs.groups\n",
        "        both = frozenset()\n",
        CONFLICT,
    ),
    Mutant(
        "core/planning/conflict.py",
        "both = ours.rewritten & theirs.groups\n    elif",
        "both = frozenset()\n    elif",
        CONFLICT,
    ),
    Mutant(
        "core/planning/conflict.py",
        "        if reason is not None:\n            return Overlap",
        "        if reason:\n            continue\n            return Overlap",
        CONFLICT,
    ),
    Mutant("core/planning/conflict.py", "and not ours.columns & theirs.columns", "and True", CONFLICT),
    Mutant(
        "core/planning/conflict.py",
        "both = theirs.partitions if ours.overwritten is None else ours.overwritten & theirs.partitions",
        "both = frozenset[str]()",
        CONFLICT,
    ),
    Mutant(
        "core/planning/conflict.py",
        "return global_keys or bool(ours.inserted & theirs.inserted)",
        "return global_keys",
        CONFLICT,
    ),
    # Blocks that were rolled back.
    Mutant("core/format/log/scan.py", "if earlier.instant != target]", "if True]", BLOCKS),
    # Slices are cut by completion time.
    Mutant(
        "core/state/file_system_view.py",
        "position = log.instant if names.decide(log) else visible.completion(log.instant)",
        "position = log.instant",
        VIEW,
    ),
    Mutant(
        "core/state/file_system_view.py",
        'start = next((start for start in starts if start <= position), "")',
        'start = starts[0] if starts else ""',
        VIEW,
    ),
    Mutant("core/state/file_system_view.py", "if group not in visible.replaced)", "if group)", VIEW),
    Mutant(
        "core/state/file_system_view.py",
        "return instant < self.archived_before and (self.up_to is None or instant <= self.up_to)",
        "return instant < self.archived_before",
        VIEW,
    ),
    Mutant(
        "core/state/file_system_view.py",
        "if other_attempt is None or file.write_token > other_attempt.write_token:",
        "if other_attempt is None:",
        VIEW,
    ),
    Mutant("core/state/file_system_view.py", "rest = times - timeline.savepoints()", "rest = times", BOUNDARY),
    # Timeline.
    Mutant("model/instant.py", "if int(state) != before + 1:", "if int(state) < before:", TIMELINE),
    Mutant(
        "model/instant.py",
        "if state is State.COMPLETED and not (completed and completed > instant.requested):",
        "if state is State.COMPLETED and not completed:",
        TIMELINE,
    ),
    Mutant(
        "model/instant.py",
        'for t in (i.requested, i.completed or "")), default="")',
        'for t in (i.requested,)), default="")',
        TIMELINE,
    ),
    Mutant("core/timeline/timeline_store.py", "return now if now > latest else _next(latest)", "return now", INSTANTS),
    Mutant(
        "core/timeline/timeline_store.py",
        "        if current is None or current.is_completed:\n",
        "        if current is None:\n",
        INSTANTS,
    ),
    # Locks, leases, heartbeats and fencing tokens.
    Mutant("core/timeline/locks/lease.py", "is_free or self._codec.is_over(data, current)", "True", LOCK),
    Mutant(
        "core/timeline/locks/lease.py",
        "if current is None or not is_ours or self._env.clock.now_ms() > current.until_ms:",
        "if current is None or self._env.clock.now_ms() > current.until_ms:",
        CLAIMS,
    ),
    Mutant("core/timeline/locks/lease.py", "        if content == data:\n            return found_tag\n", "", CLAIMS),
    Mutant(
        "core/timeline/claims.py",
        "return _highest(env, instant) == token",
        "return True",
        CLAIMS,
    ),
    Mutant(
        "core/timeline/claims.py",
        "return _highest(env, instant) + 1",
        "return 1 + 0 * _highest(env, instant)",
        CLAIMS,
    ),
    Mutant(
        "core/timeline/heartbeat.py",
        "lease = self._policy.heartbeat_lease_ms",
        "lease = 1 << 50",
        HEARTBEAT,
    ),
    Mutant(
        "core/timeline/heartbeat.py", "                active.add(file.name)\n", "                pass\n", HEARTBEAT
    ),
    # Clean retention.
    Mutant(
        "core/planning/clean.py",
        "return requested < self.requested and completion <= self.completed",
        "return requested <= self.requested",
        CLEAN,
    ),
    Mutant(
        "core/planning/clean.py",
        "count = len(writes) - policy.commits_retained",
        "count = len(writes) - policy.commits_retained + 1",
        CLEAN,
    ),
    Mutant(
        "core/planning/clean.py",
        "older = () if anchor is None else slices[anchor + 1 :]",
        "older = () if anchor is None else slices[anchor:]",
        CLEAN,
    ),
    Mutant(
        "core/planning/clean.py",
        "return [s for s in removable if state.protected_paths.isdisjoint(slice_paths(s))]",
        "return list(removable)",
        CLEAN,
    ),
    Mutant(
        "core/planning/clean.py",
        "free = [s for s in slices if needed_from is None or s.base_instant < needed_from]",
        "free = list(slices)",
        CLEAN,
    ),
    Mutant("core/planning/clean.py", "    return not removed_writes and before", "    return before", CLEAN),
    # Archive order.
    Mutant("core/planning/archive.py", "first.requested) and c.requested not in saved]", "first.requested)]", ARCHIVE),
    Mutant("core/planning/archive.py", "        if commit.completion == latest:\n", "        if False:\n", ARCHIVE),
    Mutant("core/planning/archive.py", "free = chosen[: len(commits) - least]", "free = chosen", ARCHIVE),
    # Rollback and cleanup.
    Mutant(
        "core/operations/commit/cleanup.py",
        "elif not first_write(timeline) or requested < first_write(timeline):",
        "elif False:",
        CLEANUP,
    ),
    Mutant(
        "core/operations/commit/cleanup.py",
        "[path for path in marked if path not in named]",
        "list(marked)",
        "tests/unit/core/operations/test_cleanup.py tests/unit/core/operations/test_markers.py",
    ),
    # Checkpoint of ingestion.
    Mutant(
        "platform/sources/files/file_checkpoint.py",
        "if len(entries) > limit:",
        "if len(entries) > limit + 1:",
        CHECKPOINT,
    ),
    Mutant(
        "platform/sources/files/file_checkpoint.py",
        "floor = entries[-limit - 1]",
        "floor = entries[-limit]",
        CHECKPOINT,
    ),
    # Damage.
    Mutant(
        "core/planning/damage.py",
        "    if same or not belongs:\n",
        "    if same or not belongs or size is None:\n",
        DAMAGE,
    ),
    Mutant(
        "core/format/log/scan.py",
        "        return [(number, block) for _, number, block in corrupt]\n",
        "        return []\n",
        DAMAGE,
    ),
    # Metadata table: what a commit records, and in which order.
    Mutant(
        "core/operations/commit/completion.py",
        "        recorded = _record(table, action, action.change, lock)\n",
        "        early = table.store.complete(action.instant, action.timeline, action.data, lock)\n"
        "        recorded = _record(table, action, action.change, lock)\n"
        "        return early\n",
        RECORDING,
    ),
    Mutant(
        "core/operations/commit/completion.py",
        "        lock.check_lease()\n        return table.store.complete("
        "action.instant, action.timeline, action.data, last, after=after)",
        "        return table.store.complete(action.instant, action.timeline, action.data, last, after=after)",
        f"{RECORDING} tests/unit/core/operations/test_completion.py",
    ),
    Mutant("core/metadata/partitions/files.py", ", _tombstones(removed)]", "]", RECORDING),
    Mutant(
        "core/metadata/partitions/column_stats.py",
        "deletes = [deleted_keys(commit.change.removed, definition.source_fields)]",
        "deletes = [deleted_keys(commit.change.removed.slice(0, 0), definition.source_fields)]",
        STATISTICS,
    ),
    Mutant(
        "core/metadata/partitions/record_index.py",
        "changed += removed_groups(staging.replaced(), operation)",
        "pass",
        "tests/unit/core/metadata/test_metadata_check.py",
    ),
    Mutant(
        "core/metadata/write/commit.py",
        "if refused and not lock.policy.metadata.auto_delete:",
        "if False:",
        RECORDING,
    ),
    Mutant(
        "core/metadata/write/rollback.py",
        "        timelines.withdraw(recorded)\n    else:\n",
        "        pass\n    else:\n",
        RECORDING,
    ),
    Mutant(
        "core/operations/undo/rollback.py",
        "        if not is_removed or _lists_deleted_files(table.refresh(), plan):\n",
        "        if False:\n",
        UNDONE_WRITES,
    ),
    # Metadata table: what a reader sees.
    Mutant("core/metadata/read/validity.py", "instant not in self.pending and ", "", READING),
    Mutant("core/metadata/read/validity.py", " and instant[:TIME_DIGITS] <= self.newest", "", READING),
    Mutant(
        "core/metadata/read/validity.py", "        and i.requested not in recorded\n", "        and False\n", READING
    ),
    Mutant(
        "core/format/metadata/merge.py",
        "np.where(older == _LIVE, _ABSENT, _TOMBSTONE), _LIVE)",
        "np.where(older == _LIVE, _LIVE, _TOMBSTONE), _LIVE)",
        "tests/unit/core/format/metadata/test_merge.py",
    ),
)


def run_mutants(home: Path, mutants: Sequence[Mutant] = MUTANTS, workers: int = 2) -> list[str]:
    """Apply each mutant to a copy of the package and run its tests; return the surviving and outdated ones."""
    copies: SimpleQueue[Path] = SimpleQueue()
    for number in range(workers):
        copies.put(_copied(home / f"mutants-{number}"))

    def judge(mutant: Mutant) -> str:
        copy = copies.get()
        try:
            return _verdict(copy, mutant)
        finally:
            copies.put(copy)

    with ThreadPoolExecutor(workers) as pool:
        return [verdict for verdict in pool.map(judge, mutants) if verdict]


def _verdict(copy: Path, mutant: Mutant) -> str:
    """Return why a mutant is not killed, or empty text if it is."""
    path = copy / "lakehouse" / mutant.file
    whole = path.read_text(encoding="utf-8")
    if whole.count(mutant.text) != 1:
        return f"out of date, found {whole.count(mutant.text)} times: {mutant.name}"
    path.write_text(whole.replace(mutant.text, mutant.mutated), encoding="utf-8")
    try:
        code = _run(copy, mutant.tests.split())
    finally:
        path.write_text(whole, encoding="utf-8")
    if code == _FAILED:
        return ""
    return f"survived {mutant.tests}: {mutant.name}" if code == 0 else f"tests did not run ({code}): {mutant.name}"


def _run(copy: Path, tests: Iterable[str]) -> int:
    """Return the exit status of pytest; a timeout counts as a failure of the tests."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]
    environment = os.environ | {"PYTHONPATH": f"{copy}:{copy / 'plugins'}", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=_LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        return _FAILED
    return done.returncode


def _copied(target: Path) -> Path:
    target.mkdir()
    for name in _COPIED:
        source = _ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "bench"))
        else:
            shutil.copy(source, target / name)
    return target
