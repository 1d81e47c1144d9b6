"""Makes the referee known to the tests of this folder."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.interop.agreement")

from tests.support.referee import referee  # noqa: E402

__all__ = ["referee"]
