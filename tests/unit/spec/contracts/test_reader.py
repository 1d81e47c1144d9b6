"""The messages between the API server and its reader processes."""

from __future__ import annotations

import pytest

from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.reader import ReaderAnswer, ReaderRequest


@pytest.mark.parametrize(
    "message",
    [
        ReaderRequest(words=("timeline", "bars", "--table=a.b\n")),
        ReaderAnswer(exit_code=64, output='{"a": "\\n"}\n', errors="UserError: ü\n"),
    ],
)
def test_message_is_one_line_and_round_trips(message: Document) -> None:
    line = message.to_json()
    assert "\n" not in line
    assert type(message).from_json(line) == message
