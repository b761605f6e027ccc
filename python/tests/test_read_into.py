"""Batches of reads into memory of the caller's."""

from __future__ import annotations

import array
import ctypes
import mmap
import random
import threading
from pathlib import Path
from typing import Any

import forebay
import numpy
import pytest

from .conftest import content


def test_a_batch_fills_every_buffer_in_its_place(client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    draw = random.Random(3)
    with client.open("/large") as file:
        reads: list[tuple[forebay.File | str, int, bytearray]] = []
        for number in range(500):
            offset = draw.randrange(len(wanted) + 100)
            reads.append((file if number % 2 else "/large", offset, bytearray(draw.randrange(1, 50_000))))
        counts = client.read_into(reads)
    for (_, offset, buffer), count in zip(reads, counts, strict=True):
        assert count == max(0, min(len(buffer), len(wanted) - offset))
        assert bytes(buffer[:count]) == wanted[offset : offset + count]
        assert not any(buffer[count:])


def test_a_read_is_as_long_as_its_buffer(client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    buffer = bytearray(len(wanted) + 1000)
    assert client.read_into([("/large", 0, buffer)]) == [len(wanted)]
    assert bytes(buffer[: len(wanted)]) == wanted
    # From memory now.
    again = bytearray(len(wanted))
    assert client.read_into(iter([("/large", 0, again)])) == [len(wanted)]
    assert again == wanted
    assert client.read_into([]) == []
    assert client.read_into([("/empty", 0, bytearray(1)), ("/large", 0, bytearray(0))]) == [0, 0]


def test_any_writable_memory_will_do(client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "small").read_bytes()[:16]
    floats = numpy.zeros(4, numpy.float32)
    numbers = array.array("Q", [0, 0])
    matrix = numpy.zeros((2, 8), numpy.uint8)
    mapped = mmap.mmap(-1, 16)
    pinned = ctypes.create_string_buffer(16)
    targets: list[Any] = [floats, numbers, matrix, mapped, memoryview(bytearray(16)), (ctypes.addressof(pinned), 16)]
    counts = client.read_into([("/small", 0, target) for target in targets])
    assert counts == [16] * len(targets)
    for target in targets[:3]:
        assert target.tobytes() == wanted
    assert mapped[:] == pinned.raw == wanted
    mapped.close()


def test_what_cannot_be_written_to_is_refused_before_anything_is_read(client: forebay.Client) -> None:
    untouched = bytearray(4)
    every_other = numpy.zeros(32, numpy.uint8)[::2]
    refused: list[tuple[Any, str]] = [(b"1234", "read-only"), (every_other, "not contiguous"), (7, "bytes-like")]
    for target, words in refused:
        with pytest.raises(TypeError, match=words):
            client.read_into([("/small", 0, untouched), ("/small", 0, target)])
    with pytest.raises(ValueError, match="address is 0"):
        client.read_into([("/small", 0, (0, 16))])
    assert untouched == bytearray(4)


def test_the_first_error_ends_a_batch_with_its_path(client: forebay.Client) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        client.read_into([("/small", 0, bytearray(4)), ("/missing", 0, bytearray(4))])
    assert missing.value.filename == "/missing"


def test_ranges_come_as_bytes(client: forebay.Client, origin: Path) -> None:
    wanted = (origin / "large").read_bytes()
    ranges = [("/large", 0, 5), ("/large", len(wanted) - 5, 100), ("/small", 0, 0), ("/large", 4 << 20, 3 << 20)]
    found = client.read_ranges(ranges)
    assert found == [wanted[:5], wanted[-5:], b"", wanted[4 << 20 : 7 << 20]]


def test_ranges_take_no_more_memory_than_there_are_bytes(client: forebay.Client, origin: Path) -> None:
    def peak() -> int:
        [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) << 10

    small = (origin / "small").read_bytes()
    # Its peak is from now on.
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    assert client.read_ranges([("/small", 0, 4 << 20)] * 64) == [small] * 64
    assert peak() - before < 64 << 20


def test_many_threads_read_and_drop_and_close(client: forebay.Client, origin: Path) -> None:
    """On a free-threaded interpreter, at the same time."""
    wanted = {f"/tree/{number:02}": content(number, 1000 + number) for number in range(20)}
    wrong: list[object] = []

    def read(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(50):
            path = draw.choice(list(wanted))
            with client.open(path) as file:
                view = file.view(0, 2000)
                buffer = bytearray(2000)
                [count] = client.read_into([(file if draw.random() < 0.5 else path, 0, buffer)])
                if not bytes(view) == bytes(buffer[:count]) == wanted[path]:
                    wrong.append(path)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
