"""Run a module in a process without pandas: python -m tests.bench.without_pandas <module> <arguments>.

pyarrow imports pandas where it is installed, which takes 46 MB that no plan uses.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any


class _Hidden:
    """Finds no pandas."""

    def find_spec(self, name: str, *_: Any) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name)


if __name__ == "__main__":
    sys.meta_path.insert(0, _Hidden())  # type: ignore[arg-type]
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
