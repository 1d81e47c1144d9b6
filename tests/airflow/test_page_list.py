"""The modules of the pages, and the one that is made from the specs of services."""

from __future__ import annotations

import json
import re

from lakehouse.model.timeline_service import TimelineService
from lakehouse.spec.table.services import SERVICE_SPECS, SERVICES
from lakehouse_airflow.page_list import page_modules


def test_declared_module_lists_services_and_the_lanes_of_a_timeline() -> None:
    source = page_modules()["declared.js"].decode()
    values = {
        name: json.loads(text) for name, text in re.findall(r"^export const (\w+) = (.+);$", source, re.MULTILINE)
    }
    assert values["SERVICES"] == list(SERVICES)
    assert values["WITHOUT_INSTANT"] == [spec.name for spec in SERVICE_SPECS if not spec.leaves_instants]
    assert {"archive", "sync"} <= set(values["WITHOUT_INSTANT"]) and "ttl" not in values["WITHOUT_INSTANT"]
    services = ["compaction", "logcompaction", "clustering", "replacement", *SERVICES[3:]]
    assert list(values["WORDS"]) == ["write", *services, "savepoint", "rollback", "restore"]
    assert {service: service.word for service in TimelineService}.items() <= values["WORDS"].items()
    assert values["WORDS"]["logcompaction"] == "log compaction" and values["WORDS"]["archive"] == "archive"


def test_every_imported_module_is_served() -> None:
    modules = page_modules()
    imported = {
        name
        for content in modules.values()
        for name in re.findall(r"(?:from|import\(|lazyPage\()\s*'\./([\w-]+\.js)'", content.decode())
    }
    assert {"declared.js", "core.js", "table.js"} <= imported
    assert imported - set(modules) == set()
