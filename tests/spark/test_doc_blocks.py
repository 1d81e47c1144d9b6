"""Code blocks of pages that use Spark run in their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.doc_blocks import Page, PageRun, pages


@pytest.mark.spark
@pytest.mark.parametrize("page", pages("spark"), ids=lambda page: page.path)
def test_code_blocks_of_a_page_with_spark_run_in_order(
    page: Page, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PageRun(tmp_path, monkeypatch)
    run.run(page)
    assert set(run.executed) >= page.runnable
    assert page.runnable
