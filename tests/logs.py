"""What a test has made the program log."""

import logging
import threading

import pytest


def own_records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged in the test's own thread: clusters that tests share log in theirs, whenever they like."""
    return [record for record in caplog.records if record.thread == threading.get_ident()]
