"""Concurrent edits and folds of TTL rules: any interleaving keeps each edit, and all readers see the same rules.

A fold writes the rules of all edits of the log into the base file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.env import Env
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline import ttl_policy_log as policy_log
from lakehouse.core.timeline.ttl_policy_log import BASE, edit_path, fold_rules, read_rules, remove_rule, set_rule
from lakehouse.errors import CommitStateUnknownError, CorruptTableError, UserError
from lakehouse.model.ttl import TtlRule
from lakehouse.spec.options.ttl import ttl_rule
from tests.support.interleave import Actor, orders, play
from tests.support.tables import SeededIds, SteadyClock, examples


def env_of(storage: Storage, actor: int = 0) -> Env:
    return Env(storage=storage, clock=SteadyClock(), ids=SeededIds(actor))


def setting(actor: int, *rules: TtlRule) -> Actor:
    def run(storage: Storage) -> None:
        for rule in rules:
            set_rule(env_of(storage, actor), rule)

    return run


def folding(actor: int, times: int = 1) -> Actor:
    def run(storage: Storage) -> None:
        for turn in range(times):
            fold_rules(env_of(storage, 1000 * actor + turn))

    return run


def edits(storage: Storage) -> list[dict[str, object]]:
    """Return the edits of the log in order; check that their numbers have no gap, which would end the log."""
    files = [file.path for file in storage.list(".hoodie/.lakehouse/ttl/log")]
    assert files == [edit_path(number) for number in range(1, len(files) + 1)]
    return [json.loads(storage.get(path)) for path in files]


def rules_of_log(storage: Storage) -> tuple[TtlRule, ...]:
    """Return the rules that result if all edits of the log are applied to a dict in order."""
    rules: dict[str, TtlRule] = {}
    for edit in edits(storage):
        rules.pop(str(edit.get("remove")), None)
        if isinstance(mapping := edit.get("set"), dict):
            rules.pop(mapping["id"], None)
            rules[mapping["id"]] = TtlRule.from_mapping(mapping)
    return tuple(rules.values())


def agreed(storage: Storage) -> tuple[TtlRule, ...]:
    """Return the rules; check that the log, the base file and reads before and after a fold give the same rules."""
    before = read_rules(env_of(storage))
    assert before == rules_of_log(storage)
    fold_rules(env_of(storage, 99))
    assert read_rules(env_of(storage)) == before
    if edits(storage):
        assert [TtlRule.from_mapping(rule) for rule in json.loads(storage.get(BASE))["rules"]] == list(before)
    return before


def named(*names: str) -> list[TtlRule]:
    return [ttl_rule(name, max_partitions=1) for name in names]


def test_two_edits_and_a_fold_keep_both_rules_in_every_order() -> None:
    last: list[Storage] = []

    def world() -> tuple[Storage, Sequence[Actor]]:
        last[:] = [MemoryStorage()]
        return last[0], [setting(1, *named("a")), setting(2, *named("b")), folding(3)]

    count = 0
    for _ in orders(world, preemptions=3):
        count += 1
        assert {rule.id for rule in agreed(last[0])} == {"a", "b"}
        assert len(edits(last[0])) == 2
    assert count > 100


def test_exploration_finds_a_lost_edit_when_create_overwrites() -> None:
    class Overwriting(MemoryStorage):
        def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
            self.put(path, data)
            return True

    last: list[Storage] = []

    def world() -> tuple[Storage, Sequence[Actor]]:
        last[:] = [Overwriting()]
        return last[0], [setting(1, *named("a")), setting(2, *named("b"))]

    assert any(len(edits(last[0])) < 2 for _ in orders(world))


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[str]], list[int], int]:
    scripts = draw(
        st.lists(
            st.lists(st.sampled_from(["a", "b", "c", "-a", "-b", "fold"]), min_size=1, max_size=5),
            min_size=2,
            max_size=4,
        )
    )
    return scripts, draw(st.lists(st.integers(0, 99), max_size=60)), draw(st.integers(1, 4))


@given(histories())
@examples(60)
def test_readers_agree_after_any_interleaving_of_edits_and_folds(
    history: tuple[list[list[str]], list[int], int],
) -> None:
    scripts, choices, fold_after = history
    made: list[int] = []

    def actor(number: int, script: list[str]) -> Actor:
        def run(storage: Storage) -> None:
            for turn, word in enumerate(script):
                env = env_of(storage, 100 * number + turn)
                if word == "fold":
                    fold_rules(env)
                elif word.startswith("-"):
                    try:
                        made.append(remove_rule(env, word[1:]))
                    except UserError as error:
                        assert "has no ttl rule" in str(error)
                else:
                    made.append(set_rule(env, ttl_rule(word, rule_id=word, max_partitions=100 * number + turn + 1)))

        return run

    storage = MemoryStorage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_log, "_FOLD_AFTER", fold_after)
        play(storage, [actor(number, script) for number, script in enumerate(scripts)], choices, any_numbers=True)
    assert sorted(made) == list(range(1, len(edits(storage)) + 1)), "edit numbers must be unique and without gaps"
    agreed(storage)


def test_edit_is_atomic_and_leaves_no_gap_after_a_crash_at_any_step() -> None:
    for step in range(1, 40):
        for mode in (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER):
            storage = MemoryStorage()
            for rule in named("a", "b"):
                set_rule(env_of(storage), rule)
            faulty = FaultyStorage(storage, step, mode)
            try:
                set_rule(env_of(faulty, 1), ttl_rule("c", max_bytes="1kB"))
                fold_rules(env_of(faulty, 2))
                ended = True
            except SimulatedCrash:
                ended = False
            rules = {rule.id for rule in agreed(storage)}
            assert {"a", "b"} <= rules and (not ended or "c" in rules)
        if ended:
            return
    raise AssertionError("the edit takes more storage steps than the test covers")


def test_edit_with_a_lost_reply_raises_a_retryable_or_unknown_state_error() -> None:
    storage = MemoryStorage()
    trace = FaultyStorage(storage)
    set_rule(env_of(trace), ttl_rule("a", max_partitions=1))
    at = next(n for n, step in enumerate(trace.trace, 1) if step.startswith("create"))
    other = MemoryStorage()
    with pytest.raises(Exception, match="lost") as lost:
        set_rule(env_of(FaultyStorage(other, at, FaultMode.LOSE_REPLY)), ttl_rule("a", max_partitions=1))
    assert getattr(lost.value, "retryable", False) or isinstance(lost.value, CommitStateUnknownError)
    assert [rule.id for rule in read_rules(env_of(other))] == ["a"]


def test_fold_keeps_the_base_file_of_a_concurrent_fold() -> None:
    storage = MemoryStorage()
    set_rule(env_of(storage), ttl_rule("a", max_partitions=1))
    taken, _ = play(storage, [folding(1), folding(2)], [0, 0, 0, 1, 1, 1, 1, 0])
    assert sum("replace_if" in step for step in taken) == 2
    assert [rule.id for rule in agreed(storage)] == ["a"]
    assert not fold_rules(env_of(storage, 7)), "nothing to fold"


def test_base_file_limits_the_requests_of_a_read() -> None:
    storage = MemoryStorage()
    for number in range(70):
        set_rule(env_of(storage, number), ttl_rule(f"r{number % 5}", max_partitions=number + 1))
    reads = FaultyStorage(storage)
    assert len(read_rules(env_of(reads))) == 5
    assert len(reads.trace) <= 40


def test_remove_rule_suggests_existing_rules_for_an_unknown_id() -> None:
    env = env_of(MemoryStorage())
    set_rule(env, ttl_rule("region=eu", max_partitions=1))
    with pytest.raises(UserError, match=r"rules: region=eu. Did you mean 'region=eu'"):
        remove_rule(env, "region=e")
    with pytest.raises(UserError, match="the options of the table define"):
        set_rule(env, ttl_rule("*", rule_id="table"))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"id": "x"}', b'{"id": "x", "at_ms": 1, "set": {"id": "a", "max": 1}}'])
def test_read_rules_refuses_a_damaged_edit(data: bytes) -> None:
    storage = MemoryStorage()
    storage.create(edit_path(1), data)
    with pytest.raises(CorruptTableError, match=r"000000000001\.json"):
        read_rules(env_of(storage))


def test_concurrent_threads_on_local_disk_lose_no_edit(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))

    def edit(actor: int) -> None:
        for number in range(12):
            set_rule(Env(storage=storage), ttl_rule(f"r{actor}-{number}", max_partitions=1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(edit, range(4)))
    assert {rule.id for rule in agreed(storage)} == {f"r{actor}-{number}" for actor in range(4) for number in range(12)}
