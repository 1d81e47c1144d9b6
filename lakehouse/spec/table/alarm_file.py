"""The user's file of alarms: its path and its content. Its sections are `rules`, `overrides` and `notifiers`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lakehouse.errors import SettingError

#: Variable with the path of the user's file. Default: `alarms.yaml` next to a folder of table specs, if it exists.
VARIABLE = "LAKEHOUSE_ALARMS"
FILE_NAME = "alarms.yaml"
SECTIONS = ("rules", "overrides", "notifiers")
_SPECS = ("LAKEHOUSE_SYNC_SPECS", "LAKEHOUSE_SPECS")


def alarm_file(environ: Mapping[str, str]) -> Path | None:
    """Return the path of the user's file:

    LAKEHOUSE_ALARMS, otherwise `alarms.yaml` next to a folder of specs, otherwise None.
    """
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    folders = [Path(text) for name in _SPECS for text in environ.get(name, "").split(os.pathsep) if text]
    beside = [folder.absolute().parent / FILE_NAME for folder in folders]
    return next((path for path in beside if path.is_file()), None)


def text_of_alarm_file(path: Path) -> str:
    """Return the content of the user's file; raise SettingError if it cannot be read."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(
            f"the alarm rules {path} cannot be read: {error}; correct {VARIABLE}, or unset it for the shipped rules",
            setting=VARIABLE,
        ) from error
