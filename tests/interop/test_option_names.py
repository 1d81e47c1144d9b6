"""Every configuration name of Apache Hudi 1.2 has a classification in the options of Hudi jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.spec.options.hudi.catalogue import catalogue
from tests.support.hudi import JARS, ROOT, Hudi
from tests.support.lock_bridge import compiled

pytestmark = pytest.mark.jvm

SOURCE = Path(__file__).parents[1] / "support" / "ConfigNames.java"


def test_every_name_of_hudi_is_classified(hudi: Hudi, tmp_path: Path) -> None:
    hudi.load_classes(compiled(tmp_path, SOURCE))
    (jar,) = (ROOT / ".jars").glob(JARS)
    hudi.call("ConfigNames", f"{jar}\n{tmp_path / 'names'}")
    names = {*(tmp_path / "names").read_text(encoding="utf-8").split()}
    assert len(names) > 600
    assert sorted(names - catalogue().keys()) == []
    of_release = {option.name for option in catalogue().values() if "1.2" in option.releases}
    # Names of classes that only other engines load are in the list of an earlier run.
    assert len(of_release - names) < len(of_release) // 10
