"""Run:ai's library that streams models, and what takes its place, by the interfaces of 0.17 and of 0.15. Their package is not imported:
that needs torch."""

from __future__ import annotations

import ctypes
import importlib.util
from pathlib import Path
from typing import Any

#: Milliseconds that one answer may take.
SOON = 60_000


class Device(ctypes.Structure):
    """Where bytes are to be: 0 is memory of the processor."""

    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int)]


class Streamer:
    """The interface of 0.17."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.runai_file_streamer_end.restype = None
        self._handle = ctypes.c_void_p()
        self._call("start", ctypes.byref(self._handle))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, f"runai_file_streamer_{name}")(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} of {self._library._name} answers {code}")

    def load(self, path: str, ranges: list[tuple[int, int]], buffer: Any) -> None:
        """Reads ranges of a file, offsets and lengths, one after the other into ``buffer``."""
        count = len(ranges)
        places: list[int] = []
        at: int = buffer.ctypes.data
        for _, length in ranges:
            places.append(at)
            at += length
        number = ctypes.c_uint64()
        self._call(
            "request",
            self._handle,
            ctypes.byref(number),
            ctypes.c_uint32(1),
            (ctypes.c_char_p * 1)(path.encode()),
            (ctypes.c_uint32 * 1)(count),
            (ctypes.c_size_t * count)(*[offset for offset, _ in ranges]),
            (ctypes.c_size_t * count)(*[length for _, length in ranges]),
            (ctypes.c_void_p * count)(*places),
            Device(0, 0),
        )
        for _ in ranges:
            answer = (ctypes.c_uint64(), ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_int())
            self._call("response", self._handle, *map(ctypes.byref, answer), ctypes.c_uint(SOON))

    def close(self) -> None:
        self._library.runai_file_streamer_end(self._handle)


class EarlierStreamer:
    """The interface of 0.15: ranges of a file that follow one another."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.runai_end.restype = None
        self._handle = ctypes.c_void_p()
        self._call("start", ctypes.byref(self._handle))

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, f"runai_{name}")(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} of {self._library._name} answers {code}")

    def load(self, path: str, ranges: list[tuple[int, int]], buffer: Any) -> None:
        """Reads ranges of a file, offsets and lengths, one after the other into ``buffer``."""
        count, begin = len(ranges), ranges[0][0]
        lengths = (ctypes.c_size_t * count)(*[length for _, length in ranges])
        self._call(
            "request",
            self._handle,
            ctypes.c_uint32(1),
            (ctypes.c_char_p * 1)(path.encode()),
            (ctypes.c_size_t * 1)(begin),
            (ctypes.c_size_t * 1)(sum(lengths)),
            (ctypes.c_void_p * 1)(buffer.ctypes.data),
            (ctypes.c_uint32 * 1)(count),
            (ctypes.POINTER(ctypes.c_size_t) * 1)(ctypes.cast(lengths, ctypes.POINTER(ctypes.c_size_t))),
            # Of an object store: there is none.
            *[None] * 5,
        )
        for _ in ranges:
            answer = (ctypes.c_uint32(), ctypes.c_uint32())
            self._call("response", self._handle, *map(ctypes.byref, answer))

    def close(self) -> None:
        self._library.runai_end(self._handle)


def their_streamer() -> Path | None:
    """Run:ai's library, where it is installed."""
    found = importlib.util.find_spec("runai_model_streamer")
    if found is None or not found.submodule_search_locations:
        return None
    library = Path(found.submodule_search_locations[0]) / "libstreamer/lib/libstreamer.so"
    return library if library.exists() else None
