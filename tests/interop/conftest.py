"""Define the fixtures `hudi`, `hudi_0_15` and `metadata_referee` for the tests of this folder."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.interop.agreement")

from tests.support.hudi import hudi  # noqa: E402
from tests.support.hudi_0_15 import hudi_0_15  # noqa: E402
from tests.support.metadata_referee import metadata_referee  # noqa: E402

__all__ = ["hudi", "hudi_0_15", "metadata_referee"]
