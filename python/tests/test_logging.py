"""What the native module tells, in Python's ``logging``."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import forebay
import pytest
from forebay import _logging, _native

from .conftest import SMALL, SOON, in_fork


class Kept(logging.Handler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, text: str) -> list[logging.LogRecord]:
        return [record for record in self.records if text in record.getMessage()]


def eventually(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def kept() -> Iterator[Kept]:
    """All that goes to our loggers, whose levels are as they were in the end."""
    handler, logger = Kept(), logging.getLogger("forebay")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)
    for name in ("forebay", "forebay.worker", "forebay.client"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def row(severity: int, text: str, target: str = "forebay_client::routes") -> _native.LogRow:
    return (severity, target, text, 1234.5, "crates/forebay-client/src/routes.rs", 7)


def test_a_message_is_a_record_of_its_part_from_where_and_when_it_happened(kept: Kept) -> None:
    _logging.hand_out([row(2, "100 % of it"), row(3, "not wanted"), row(1, "bad", "ucx")], 0)
    first, second = kept.records
    assert (first.name, first.levelno, first.getMessage()) == ("forebay.client", logging.WARNING, "100 % of it")
    assert (first.filename, first.lineno, first.created, first.msecs) == ("routes.rs", 7, 1234.5, 500.0)
    assert (second.name, second.levelno) == ("forebay.ucx", logging.ERROR)


@pytest.mark.parametrize(
    ("target", "name"),
    [("forebay_client::routes", "forebay.client"), ("object_store", "forebay.object_store"), ("forebay", "forebay")],
)
def test_a_part_has_a_logger(target: str, name: str) -> None:
    assert _logging.name_of(target) == name


def test_what_was_left_out_is_told(kept: Kept) -> None:
    _logging.hand_out([], 17)
    [record] = kept.records
    assert record.levelno == logging.WARNING and record.getMessage().startswith("17 messages")


def test_a_handler_that_raises_keeps_no_message_from_others(kept: Kept, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        if "first" in record.getMessage():
            raise ValueError("a filter's own fault")
        return True

    kept.addFilter(refuse)
    _logging.hand_out([row(2, "first"), row(2, "second")], 0)
    assert [record.getMessage() for record in kept.records] == ["second"]
    assert "a filter's own fault" in capsys.readouterr().err


def test_as_much_is_wanted_as_the_most_talkative_logger_wants(kept: Kept) -> None:
    ours, part = logging.getLogger("forebay"), logging.getLogger("forebay.worker")
    logging.getLogger("forebay.worker.deep")
    levels: list[tuple[str | int, int]] = [("WARNING", 2), ("ERROR", 1), ("CRITICAL", 0), ("INFO", 3), ("DEBUG", 4)]
    for level, wanted in [*levels, (5, 5), (1, 5), (35, 1)]:
        ours.setLevel(level)
        assert _logging.wanted() == wanted, level
    ours.setLevel("WARNING")
    part.setLevel("DEBUG")
    assert _logging.wanted() == 4


def test_levels_count_for_a_client_that_is_connected(client: forebay.Client, origin: Path, kept: Kept) -> None:
    text, numbers = "asking the origin", itertools.count()
    client.read("/tree/00")
    logging.getLogger("forebay.worker").setLevel(logging.DEBUG)

    def is_told() -> bool:
        name = f"new{next(numbers)}"
        (origin / name).write_bytes(b"new")
        client.read(f"/{name}")
        time.sleep(0.1)
        return bool(kept.of(text))

    eventually(is_told)
    record = kept.of(text)[0]
    assert (record.name, record.levelno, record.threadName) == ("forebay.worker", logging.DEBUG, "forebay-log")
    assert record.filename.endswith(".rs") and abs(record.created - time.time()) < SOON


def test_a_forked_process_logs_what_happens_in_it_and_nothing_of_its_parents(origin: Path, kept: Kept) -> None:
    logging.getLogger("forebay.worker").setLevel(logging.DEBUG)
    with forebay.Client(up=origin, **SMALL) as client:
        client.read("/large")

        def use() -> str:
            kept.records.clear()
            forked = time.time()
            client.read("/small")
            eventually(lambda: kept.of("asking the origin"))
            return str(all(record.process == os.getpid() and record.created >= forked for record in kept.records))

        assert in_fork(use) == "True"
        eventually(lambda: kept.of("asking the origin"))
    assert {record.process for record in kept.records} == {os.getpid()}


def test_the_last_messages_are_handed_out_at_the_end_and_warnings_are_seen_by_default(origin: Path) -> None:
    program = f"""
        import logging, sys
        import forebay
        from forebay import _native
        logging.getLogger("forebay.worker").setLevel(logging.DEBUG)
        logging.getLogger("forebay.worker").addHandler(logging.StreamHandler(sys.stdout))
        client = forebay.Client(up={str(origin)!r}, **{SMALL!r})
        client.read("/small")
        take = _native.log_take
        _native.log_take = lambda: (take()[0] + [(2, "forebay_client", "seen by default", 1.0, None, None)], 0)
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=SOON
    )
    assert ended.returncode == 0, ended.stderr
    assert "asking the origin" in ended.stdout and "seen by default" in ended.stderr
