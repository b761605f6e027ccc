"""Loaders of others on a mount, unchanged: what they read is what was saved."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors
import safetensors.numpy

from .conftest import SOON
from .test_streamer import Streamer, buffers, present

SIZE = 24 << 20


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A model on a mount, cold, and its tensors."""
    program = os.environ.get("PYTHON_TESTS_PROGRAM")
    if not program:
        pytest.skip("the program forebay is not built: PYTHON_TESTS_PROGRAM does not name it")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is not there, or not for this user: nothing can be mounted")
    origin, mount = tmp_path / "models", tmp_path / "mount"
    origin.mkdir()
    mount.mkdir()
    draw = numpy.random.default_rng(11)
    tensors = {f"layer.{number:02}": draw.random((256, 512)) for number in range(SIZE // (256 * 512 * 8))}
    tensors["bias"] = draw.random(3).astype(numpy.float32)
    safetensors.numpy.save_file(tensors, origin / "model.safetensors")
    options = ("worker.memory.size=64MiB", "worker.memory.prewarm=false", "write.mode=none")
    # Sockets have short paths.
    run = tempfile.TemporaryDirectory(prefix="fb-")
    variables = os.environ | {"FOREBAY_RUN_DIR": run.name}
    command = [program, "up", str(origin), str(mount), *[part for option in options for part in ("-o", option)]]
    started = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=4 * SOON)
    if started.returncode != 0 and os.geteuid() != 0:
        pytest.skip(f"nothing can be mounted by this user: {started.stderr.strip()}")
    assert started.returncode == 0, started.stderr
    with run:
        yield mount / "model.safetensors", tensors
        subprocess.run([program, "umount", "--lazy", str(mount)], env=variables, check=True, timeout=4 * SOON)


def same(found: dict[str, Any], wanted: dict[str, Any]) -> bool:
    return found.keys() == wanted.keys() and all(numpy.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_safetensors_reads_tensors_and_slices(mounted: tuple[Path, dict[str, Any]], backend: str) -> None:
    path, tensors = mounted
    # In a process of its own: a page fault that waits for the mount holds up all other threads of its process.
    program = f"""
import json, sys, hashlib
from safetensors import safe_open
found = {{}}
with safe_open({str(path)!r}, framework="np", backend={backend!r}) as model:
    # Not in the order of the bytes.
    for name in sorted(model.keys(), key=lambda name: hashlib.md5(name.encode()).digest()):
        found[name] = hashlib.sha256(model.get_tensor(name).tobytes()).hexdigest()
    part = model.get_slice("layer.03")[10:20, 100:200]
    found["slice"] = hashlib.sha256(part.tobytes()).hexdigest()
print(json.dumps(found))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=4 * SOON)
    assert said.returncode == 0, said.stderr
    wanted = {name: hashlib.sha256(tensor.tobytes()).hexdigest() for name, tensor in tensors.items()}
    wanted["slice"] = hashlib.sha256(tensors["layer.03"][10:20, 100:200].tobytes()).hexdigest()
    assert json.loads(said.stdout) == wanted


def test_the_streamer_of_today_reads_it_whole(mounted: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = mounted
    size = path.stat().st_size
    streamer = Streamer(f"{present()}/runai_model_streamer/libstreamer/lib/libstreamer.so")
    piece = 1 << 20
    parts = buffers(*[min(piece, size - start) for start in range(0, size, piece)])
    code, _ = streamer.request([(path, [(number * piece, part) for number, part in enumerate(parts)])])
    assert code == 0
    assert [streamer.response()[0] for _ in parts] == [0] * len(parts)
    streamer.end()
    assert same(safetensors.numpy.load(b"".join(part.raw for part in parts)), tensors)


def test_the_earlier_streamer_reads_it_whole(mounted: tuple[Path, dict[str, Any]]) -> None:
    path, tensors = mounted
    size = path.stat().st_size
    place = os.environ["PYTHON_TESTS_EARLIER_STREAMER"]
    old = ctypes.CDLL(f"{place}/runai_model_streamer/libstreamer/lib/libstreamer.so")
    handle = ctypes.c_void_p()
    assert old.runai_start(ctypes.byref(handle)) == 0
    [memory] = buffers(size)
    half = (ctypes.c_size_t * 2)(size // 2, size - size // 2)
    code = old.runai_request(
        handle,
        ctypes.c_uint32(1),
        (ctypes.c_char_p * 1)(os.fsencode(path)),
        (ctypes.c_size_t * 1)(0),
        (ctypes.c_size_t * 1)(size),
        (ctypes.c_void_p * 1)(ctypes.addressof(memory)),
        (ctypes.c_uint32 * 1)(2),
        (ctypes.POINTER(ctypes.c_size_t) * 1)(ctypes.cast(half, ctypes.POINTER(ctypes.c_size_t))),
        *[None] * 5,
    )
    assert code == 0
    file, index = ctypes.c_uint32(), ctypes.c_uint32()
    assert [old.runai_response(handle, ctypes.byref(file), ctypes.byref(index)) for _ in range(2)] == [0, 0]
    old.runai_end(handle)
    assert same(safetensors.numpy.load(memory.raw), tensors)
