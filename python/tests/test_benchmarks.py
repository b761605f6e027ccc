"""The benchmarks, with so little of all that only their machinery is tried: their numbers say nothing here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BENCHMARKS = HERE.parent / "benchmarks"
#: On a machine that compiles meanwhile.
WITHIN_SECONDS = 240
DURATION, RATIO = re.compile(r"[\d,]+\.\d ms"), re.compile(r"\d+\.\d\d ×")


def programs() -> list[str]:
    """The arguments that name what cargo built beside the native module."""
    program = os.environ.get("PYTHON_TESTS_PROGRAM")
    server = Path(program).with_name("forebay-testkit-s3") if program else None
    if not program or not server or not server.exists():
        pytest.skip("forebay and forebay-testkit-s3 are not built beside each other: PYTHON_TESTS_PROGRAM does not name them")
    return ["--server", str(server), "--program", program]


def quick(script: str, *arguments: str) -> list[list[str]]:
    """The rows of the tables that a benchmark prints, each with its heading first."""
    places = [os.environ.get("PYTHONPATH", ""), str(BENCHMARKS), str(HERE / "programs")]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places))}
    command = [sys.executable, "-P", str(BENCHMARKS / script), "--quick", *arguments]
    ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=WITHIN_SECONDS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if set(row) != {"---"}]


def test_gets_of_the_s3_endpoint_are_measured_beside_those_of_its_origin() -> None:
    heading, *rows = quick("s3_gets.py", *programs())
    assert heading == ["origin", "served by", "what", "Forebay", "origin", "of origin"]
    by = ["`forebay s3`"] * 4 + ["worker"] * 4
    assert [(row[0], row[1]) for row in rows] == [(latency, name) for latency in ("0ms", "1ms") for name in by]
    for row in rows:
        assert all(DURATION.fullmatch(cell) for cell in row[3:5]) and RATIO.fullmatch(row[5]), row


def test_reads_whose_order_is_announced_are_measured_beside_those_whose_order_is_not() -> None:
    heading, *rows = quick("prefetch.py", *programs())
    assert heading == ["what", "announced", "not announced", "of not announced"]
    assert len(rows) == 3 and "one process" in rows[0][0] and "fork" in rows[1][0] and "spawn" in rows[2][0]
    for row in rows:
        assert all(DURATION.fullmatch(cell) for cell in row[1:3]) and RATIO.fullmatch(row[3]), row


def test_a_model_that_is_touched_all_over_is_measured_beside_one_that_is_read_in_order() -> None:
    arguments = programs()
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("nothing can be mounted by this user, or /dev/fuse is not there")
    heading, *rows = quick("faults.py", *arguments)
    assert heading == ["origin", "what", "all over", "in order", "of in order"]
    assert [row[:2] for row in rows] == [["1ms", "16 MiB in pieces of 64 KiB"]]
    for row in rows:
        assert all(DURATION.fullmatch(cell) for cell in row[2:4]) and RATIO.fullmatch(row[4]), row


def test_models_are_measured_beside_others_loading_of_them() -> None:
    if not (streamer := os.environ.get("PYTHON_TESTS_STREAMER")):
        pytest.skip("libforebay_streamer.so is not built: PYTHON_TESTS_STREAMER does not name it")
    rows = quick("models.py", *programs(), "--streamer", streamer)
    headings = [row for row in rows if row[1] == "what"]
    assert [heading[2] for heading in headings] == ["forebay.safetensors", "libforebay_streamer.so"]
    measured = [row for row in rows if row[1] != "what"]
    assert [row[0] for row in measured] == ["in the process", "of a worker"] * 2
    for row in measured:
        assert all(DURATION.fullmatch(cell) for cell in row[2:4]) and RATIO.fullmatch(row[4]), row
