"""Fuzz decoders and tables with damaged bytes.

A read of damaged bytes must return a value or raise a LakehouseError. Every other outcome is a defect: another
exception, exhausted memory or a read that does not end. The same seed repeats a case exactly.
"""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from lakehouse.core.env import Env
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError

#: Memory that a case may allocate in addition to the process's memory; the valid inputs have a few kilobytes.
MEMORY_BYTES = 2 << 30
#: The limit fails a decoder that never ends, with its stack. Every case takes less than a thousandth of it.
HANG_S = 120
_NUMBERS = (0, 1, -1, 127, 128, 255, 2**15, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63))


class HangError(Exception):
    """Raised if a case does not end within HANG_S seconds."""


@dataclass(frozen=True, slots=True)
class Defect:
    """A case in which a read neither returned a value nor raised a LakehouseError."""

    name: str
    seed: int
    problem: str


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes with one to four random changes."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(content) + 1)
        _DAMAGES[rng.randrange(len(_DAMAGES))](content, at, rng)
    return bytes(content)


def _flip(content: bytearray, at: int, rng: random.Random) -> None:
    if at < len(content):
        content[at] ^= 1 << rng.randrange(8)


def _extreme(content: bytearray, at: int, rng: random.Random) -> None:
    content[at : at + 1] = bytes((rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF)),))


def _number(content: bytearray, at: int, rng: random.Random) -> None:
    size, order = rng.choice((2, 4, 8)), rng.choice(("big", "little"))
    value = rng.choice(_NUMBERS) & (256**size - 1)
    content[at : at + size] = value.to_bytes(size, "big" if order == "big" else "little")


def _varint(content: bytearray, at: int, rng: random.Random) -> None:
    content[at : at + 1] = rng.choice((b"\xff" * 9 + b"\x01", b"\xff" * 12, b"\x80" * 5 + b"\x01", b"\x01"))


def _truncate(content: bytearray, at: int, rng: random.Random) -> None:
    if rng.random() < 0.3:
        del content[at:]


def _cut(content: bytearray, at: int, rng: random.Random) -> None:
    del content[at : at + rng.randint(1, 16)]


def _repeat(content: bytearray, at: int, rng: random.Random) -> None:
    piece = bytes(content[at : at + rng.randint(1, 64)])
    content[at:at] = piece * rng.choice((1, 2, 50))


def _noise(content: bytearray, at: int, rng: random.Random) -> None:
    content[at:at] = rng.randbytes(rng.randint(1, 16))


def _text(content: bytearray, at: int, rng: random.Random) -> None:
    content[at:at] = rng.choice(_WORDS)


_WORDS = (b'"', b"{", b"[" * 5_000, b"1e999", b"NaN", b"\\u", b"../", b"9" * 5_000, b"null", b"\0")
_DAMAGES = (_flip, _flip, _extreme, _extreme, _number, _number, _varint, _truncate, _cut, _repeat, _noise, _text)


@contextmanager
def bounded() -> Iterator[None]:
    """Limit the memory and the time of a case: exceeding them raises MemoryError or HangError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = signal.signal(signal.SIGALRM, _hang)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, hard))
    signal.alarm(HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _hang(number: int, frame: FrameType | None) -> None:
    raise HangError(f"the case did not end within {HANG_S} s")


def outcome(read: Callable[[], object]) -> str:
    """Run `read` and return the defect as text; return "" if it returns a value or raises a LakehouseError."""
    try:
        with bounded():
            read()
    except LakehouseError:
        return ""
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return f"{type(error).__name__}: {str(error)[:200]}"
    return ""


def fuzz_decoder(name: str, seeds: list[bytes], decode: Callable[[bytes], object], numbers: range) -> list[Defect]:
    """Decode one damaged input for each number; return the defects."""
    defects = []
    for number in numbers:
        rng = random.Random(f"{name}/{number}")
        data = mutated(rng.choice(seeds), rng)
        problem = outcome(lambda data=data: decode(data))  # type: ignore[misc]
        defects += [Defect(name, number, problem)] if problem else []
    return defects


def fuzz_table(name: str, files: Mapping[str, bytes], numbers: range) -> list[Defect]:
    """For each number, damage one file of a table and run every read operation; return the defects."""
    defects = []
    paths = sorted(files)
    # Metadata is small and has many formats, so most cases damage metadata.
    control = [path for path in paths if path.startswith(".hoodie/")]
    data = [path for path in paths if not path.startswith(".hoodie/")]
    for number in numbers:
        rng = random.Random(f"{name}/{number}")
        path = rng.choice(control if rng.random() < 0.6 or not data else data)
        damaged = {**files, path: mutated(files[path], rng)}
        for verb, use in USES.items():
            problem = outcome(lambda use=use, damaged=damaged: use(stored(damaged)))  # type: ignore[misc]
            if problem:
                defects.append(Defect(f"{name} {verb} {path}", number, problem))
    return defects


def stored(files: Mapping[str, bytes]) -> Storage:
    """Return a memory store with these files."""
    storage = MemoryStorage()
    for path, data in files.items():
        storage.put(path, data)
    return storage


def files_of(storage: Storage) -> dict[str, bytes]:
    """Return path and content of all files of a store."""
    return {file.path: storage.get(file.path) for file in storage.list("")}


def files_below(folder: Path) -> dict[str, bytes]:
    """Return relative path and content of all files below a local folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _open(storage: Storage) -> Table:
    return Table.open(storage.root, env=Env(storage=storage))


def _read(storage: Storage) -> None:
    table = _open(storage)
    table.scan().to_arrow()
    table.incremental("earliest").to_arrow()


def _look(storage: Storage) -> None:
    table = _open(storage)
    table.describe()
    table.health()
    table.archived()
    table.commits()


USES: Mapping[str, Callable[[Storage], object]] = {
    "describe": _look,
    "read": _read,
    "validate": lambda storage: _open(storage).validate(deep=True),
}
