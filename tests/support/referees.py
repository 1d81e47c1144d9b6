"""Load the small scripts in the shared fixtures that check the metadata table independently of the product."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pyarrow as pa

from lakehouse.core.format.xxhash import xxh64
from tests.support.shared import fixtures


def referee(name: str) -> ModuleType:
    """Return the module `<name>.py` of the shared folder of referees; it may import its neighbours."""
    path = fixtures(f"hudi_metadata/referee/{name}.py")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules.setdefault("xxhash", _xxhash())
    spec = importlib.util.spec_from_file_location(f"referee_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def _xxhash() -> ModuleType:
    """Return a stand-in for the package xxhash, whose results unit tests compare with vectors of the format."""
    module = ModuleType("xxhash")

    def hashed(data: bytes, seed: int = 0) -> SimpleNamespace:
        number = int(xxh64(pa.array([data], pa.binary()), seed)[0])
        return SimpleNamespace(digest=lambda: number.to_bytes(8, "big"))

    module.xxh64 = hashed  # type: ignore[attr-defined]
    return module
