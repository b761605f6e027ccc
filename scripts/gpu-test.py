#!/usr/bin/env python3
"""Reads into memory of a GPU, on a machine that has one of NVIDIA's. Wants the package forebay (installed, or on
PYTHONPATH), torch for CUDA, NumPy and safetensors; no network, no root, and four minutes at most. See `--help`.

Random files lie on tmpfs, and a client with a cache of its own (`up=`) reads them into the GPU: all sizes from a byte to
a gigabyte, odd offsets and addresses, many threads and streams, behind kernels that still write there, beside captures
of graphs, cancelled and interrupted. Every byte is compared on the GPU, and so is what lies around it. Tensors of a
model are compared with those of safetensors. Then tables: how fast each way is, medians of rounds in which all take
turns. With `--program`, all of that of a worker in another process, too, whose memory the GPU reads.

Exits with 1 if anything was different.
"""

import argparse
import asyncio
import contextlib
import ctypes
import errno
import faulthandler
import fcntl
import json
import logging
import mmap
import os
import pathlib
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import forebay
import forebay.safetensors
import numpy
import safetensors
import safetensors.torch
import torch
from forebay import _native
from forebay.aio import AsyncClient

#: After so many seconds it gives up.
LIMIT = 235
MIB, GIB = 1 << 20, 1 << 30
GPU = "cuda:0"
#: What is around memory that is read into, and how much of it.
MARGIN, MARK = 64, 0xA5
LENGTH = GIB + 123
NAME, MODEL = "/random", "/model.safetensors"
ROUNDS = 5


class Report:
    """What was found."""

    def __init__(self):
        self.wrong, self.checks, self.said = [], 0, []
        self._lock = threading.Lock()

    def check(self, holds, what):
        with self._lock:
            self.checks += 1
            if not holds:
                self.wrong.append(what)
                print(f"WRONG: {what}", flush=True)

    def run(self, section, *arguments):
        began = time.perf_counter()
        try:
            section(*arguments)
        except Exception:
            self.check(False, f"{section.__name__}: {traceback.format_exc()}")
        print(f"  {section.__name__.replace('_', ' ')}: {time.perf_counter() - began:.1f} s", flush=True)


REPORT = Report()


class Warnings(logging.Handler):
    """What forebay logs."""

    def emit(self, record):
        REPORT.said.append(record.getMessage())


def random_bytes(length, seed):
    generator = torch.Generator(GPU).manual_seed(seed)
    return torch.randint(0, 256, (length,), dtype=torch.uint8, device=GPU, generator=generator)


class Target:
    """Memory of the GPU, with a margin on both sides."""

    def __init__(self, length, shift=0):
        self._memory = torch.full((length + shift + 2 * MARGIN,), MARK, dtype=torch.uint8, device=GPU)
        self._start, self.length = MARGIN + shift, length
        self.address = self._memory.data_ptr() + self._start

    def has(self, wanted):
        """Whether these bytes were written, and no others."""
        end = self._start + len(wanted)
        around = [self._memory[: self._start], self._memory[end:]]
        return torch.equal(self._memory[self._start : end], wanted) and all(bool((part == MARK).all()) for part in around)


def here():
    """The current stream, as forebay takes it."""
    return torch.cuda.current_stream().cuda_stream


# What a driver does of which Forebay relies on.


def the_driver_by_itself():
    cuda = ctypes.CDLL("libcuda.so.1")
    size, flags = 256 * MIB, 0x09

    def attribute(number):
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), number, 0)
        return value.value

    facts = {"registers read-only": 113, "pageable access": 88, "of host page tables": 100}
    print("    attributes:", {name: attribute(number) for name, number in facts.items()})
    # A thread that has no context asks what an address is.
    tensor, found = torch.zeros(1, device=GPU), []

    def ask():
        for pointer in (tensor.data_ptr(), numpy.zeros(1).ctypes.data, 0):
            kind, ordinal = ctypes.c_uint(77), ctypes.c_int(77)
            results = [
                cuda.cuPointerGetAttribute(ctypes.byref(kind), 2, ctypes.c_uint64(pointer)),
                cuda.cuPointerGetAttribute(ctypes.byref(ordinal), 9, ctypes.c_uint64(pointer)),
            ]
            found.append((results, kind.value, ordinal.value))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    print("    (results, kind, ordinal) of addresses of the GPU, the host, and none:", found)
    REPORT.check(found[0] == ([0, 0], 2, 0), f"an address of the GPU is {found[0]}")
    # A window onto a worker's memory.
    memory = os.memfd_create("window", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, size)
    of_worker = mmap.mmap(memory, size)
    wanted = random_bytes(size, 1)
    of_worker.write(wanted.cpu().numpy().tobytes())
    shrink, grow, seal, future_write = 2, 4, 1, 16
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, shrink | grow | seal | future_write)
    window = numpy.frombuffer(mmap.mmap(memory, size, mmap.MAP_SHARED, mmap.PROT_READ), numpy.uint8)
    place = window.ctypes.data
    began = time.perf_counter()
    result = cuda.cuMemHostRegister_v2(ctypes.c_void_p(place), ctypes.c_size_t(size), flags)
    print(f"    256 MiB of a window are registered in {(time.perf_counter() - began) * 1e3:.1f} ms: CUresult {result}")
    if result == 0:
        again = cuda.cuMemHostRegister_v2(ctypes.c_void_p(place), ctypes.c_size_t(size), flags)
        print(f"    once more: {again}")
        into = torch.zeros(size - 1, dtype=torch.uint8, device=GPU)
        torch.cuda.synchronize()
        copied = cuda.cuMemcpyHtoDAsync_v2(
            ctypes.c_uint64(into.data_ptr()), ctypes.c_void_p(place + 1), ctypes.c_size_t(size - 1), ctypes.c_void_p(here())
        )
        torch.cuda.synchronize()
        REPORT.check(copied == 0 and torch.equal(into, wanted[1:]), f"a copy from a window: {copied}")
        ended = cuda.cuMemHostUnregister(ctypes.c_void_p(place))
        REPORT.check(ended == 0, f"the end of a registration: {ended}")
    os.close(memory)


# Reads.


def sizes_and_offsets(client, whole):
    sizes = [1, 2, 511, 4095, 4096, 4097, 65_535, MIB + 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB + 123, 64 * MIB + 1]
    with client.open(NAME) as file:
        for size in sizes:
            for offset in (0, 1, 4095, 4 * MIB - 1, 123_457, LENGTH - size, LENGTH - size // 2):
                target = Target(size, random.randrange(64))
                count = file.read_into_device(target.address, offset, size, stream=here())
                REPORT.check(count == min(size, LENGTH - offset), f"{size} bytes at {offset}: {count}")
                REPORT.check(target.has(whole[offset : offset + count]), f"{size} bytes at {offset} are others")
        for size, offset in ((256 * MIB - 3, 77), (GIB, 0), (GIB, 123), (LENGTH, 0)):
            target = Target(size, 1)
            count = file.read_into_device(target.address, offset, size, device=GPU, stream=here())
            REPORT.check(count == size and target.has(whole[offset : offset + count]), f"{size} bytes at {offset}")


def many_reads_in_one_call(client, whole):
    with client.open(NAME) as file:
        for _ in range(5):
            pieces = [(random.randrange(LENGTH), random.choice([0, 1, 100, 5000, 70_000, 5 * MIB])) for _ in range(300)]
            target = Target(sum(size for _, size in pieces))
            at, reads, wanted = target.address, [], []
            for offset, size in pieces:
                # Where a file ends, its bytes are fewer than asked for.
                size = min(size, LENGTH - offset)
                reads.append((random.choice([file, NAME]), offset, at, size))
                wanted.append(whole[offset : offset + size])
                at += size
            counts = client.read_into_device(reads, stream=here())
            REPORT.check(counts == [len(bytes_) for bytes_ in wanted], "the counts of many reads")
            REPORT.check(target.has(torch.cat(wanted)), "the bytes of many reads")


def copies_come_after_what_the_stream_has(client, whole):
    size = 64 * MIB
    for stream in (torch.cuda.default_stream(), torch.cuda.Stream()):
        for _ in range(3):
            with torch.cuda.stream(stream):
                memory = torch.zeros(size, dtype=torch.uint8, device=GPU)
                stream.synchronize()
                # A tenth of a second: the read would be done long before.
                torch.cuda._sleep(200_000_000)
                memory.fill_(1)
                client.read_into_device([(NAME, 7, memory.data_ptr(), size)], stream=stream.cuda_stream)
            # There for every stream.
            with torch.cuda.stream(torch.cuda.Stream()):
                REPORT.check(torch.equal(memory, whole[7 : 7 + size]), f"what {stream} had was not waited for")


def threads_and_streams(client, whole):
    def reads(seed):
        draw, stream = random.Random(seed), torch.cuda.Stream()
        try:
            with torch.cuda.stream(stream):
                for _ in range(20):
                    size = draw.randrange(1, draw.choice([100, 100_000, 16 * MIB]))
                    offset = draw.randrange(LENGTH - size)
                    target = Target(size, draw.randrange(16))
                    client.read_into_device([(NAME, offset, target.address, size)], stream=stream.cuda_stream)
                    REPORT.check(target.has(whole[offset : offset + size]), f"a thread: {size} bytes at {offset}")
        except Exception:
            REPORT.check(False, traceback.format_exc())

    threads = [threading.Thread(target=reads, args=[seed]) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def captures_of_graphs_go_on(client, whole):
    size, is_over, side = 8 * MIB, threading.Event(), torch.cuda.Stream()
    targets = [Target(size), Target(size), Target(size)]
    done = [0, 0]
    torch.cuda.synchronize()

    def reads(number, stream):
        # It allocates nothing: that would be torch's to refuse.
        try:
            while not is_over.is_set():
                client.read_into_device([(NAME, 1, targets[number].address, size)], device=0, stream=stream)
                done[number] += 1
        except Exception:
            REPORT.check(False, f"beside a capture: {traceback.format_exc()}")

    threads = [threading.Thread(target=reads, args=pair) for pair in ((0, 0), (1, side.cuda_stream))]
    counter, graphs = torch.zeros(1000, device=GPU), []
    # Kernels are loaded when they are first used.
    counter.add_(1).sub_(1)
    torch.cuda.synchronize()
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                counter += 1
                time.sleep(0.02)
                counter += 1
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
    for graph in graphs:
        graph.replay()
    REPORT.check(bool((counter == 40).all()) and min(done) > 0, f"graphs counted to {counter[0]}, beside {done} reads")
    graph, said = torch.cuda.CUDAGraph(), "it was taken"
    with torch.cuda.graph(graph):
        counter += 1
        try:
            client.read_into_device([(NAME, 1, targets[2].address, size)], device=0, stream=here())
        except OSError as error:
            said = str(error)
    graph.replay()
    REPORT.check("captured" in said and bool((counter == 41).all()), f"a stream that is captured: {said}")
    REPORT.check(targets[0].has(whole[1 : 1 + size]) and targets[1].has(whole[1 : 1 + size]), "bytes beside captures")
    REPORT.check(targets[2].has(whole[:0]), "a stream that is captured was copied to")


def is_left_alone(memory):
    """That nothing is written there any more."""
    memory.fill_(0x5A)
    torch.cuda.synchronize()
    time.sleep(0.03)
    return bool((memory == 0x5A).all())


def cancelled_reads_copy_no_more(client, directory):
    size, cancelled = 512 * MIB, 0
    memory = torch.zeros(size, dtype=torch.uint8, device=GPU)

    async def reads():
        nonlocal cancelled
        async with AsyncClient(up=f"file://{directory}", worker_memory_size="2GiB", worker_memory_prewarm=False) as own:
            for number in range(21):
                task = asyncio.create_task(own.read_into_device([(NAME, 3, memory.data_ptr(), size)], stream=here()))
                # The first one is not cancelled.
                await asyncio.wait([task], timeout=number * 0.0007 if number else None)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    cancelled += 1
                REPORT.check(is_left_alone(memory), "a read that was cancelled wrote")

    asyncio.run(reads())

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    interrupted, before = 0, signal.signal(signal.SIGALRM, interrupt)
    parts = [memory, *(torch.zeros(size, dtype=torch.uint8, device=GPU) for _ in range(15))]
    try:
        for number in range(5):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.06 + number * 0.02)
                client.read_into_device([(NAME, 3, part.data_ptr(), size) for part in parts], stream=here())
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupted += 1
            REPORT.check(all(is_left_alone(part) for part in (parts[0], parts[7], parts[-1])), "an interrupted read wrote")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    print(f"    cancelled {cancelled} of 20, interrupted {interrupted} of 5")


def what_is_refused(client):
    host, target = numpy.zeros(100, numpy.uint8), Target(100)
    for address, device, stream, number in [
        (host.ctypes.data, None, 0, errno.EFAULT),
        (host.ctypes.data, 0, 0, errno.EFAULT),
        (8, None, 0, errno.EFAULT),
        (target.address, 99, 0, errno.ENODEV),
        (target.address, 0, 2, errno.EINVAL),
    ]:
        said = None
        try:
            client.read_into_device([(NAME, 0, address, 50)], device=device, stream=stream)
        except OSError as error:
            said = error.errno
        REPORT.check(said == number, f"{address:#x} on {device}, stream {stream}: {said}, not {number}")
    REPORT.check(target.has(torch.empty(0, dtype=torch.uint8, device=GPU)), "what was refused was written to")


# Models.


def make_model(path, gigabytes):
    tensors = {}
    for number in range(16 * gigabytes):
        tensors[f"layer.{number:03}"] = random_bytes(64 * MIB, number).view(torch.bfloat16).reshape(8192, 4096)
    names = "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64"
    for name in (names + " float8_e4m3fn float8_e5m2 float8_e8m0fnu complex64").split():
        dtype = getattr(torch, name, None)
        if dtype is None:
            continue
        tensor = random_bytes(11 * 13 * dtype.itemsize, 1000).view(dtype).reshape(11, 13)
        try:
            safetensors.torch.save({name: tensor.cpu()})
        except Exception as error:
            print(f"    safetensors does not save {name}: {error}")
            continue
        tensors[name] = tensor
    tensors["bool"] = random_bytes(1001, 7) > 99
    tensors |= {"scalar": torch.tensor(2.5, device=GPU), "empty": torch.empty(0, 5, device=GPU)}
    safetensors.torch.save_file({name: tensor.cpu() for name, tensor in tensors.items()}, path)


def flat(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def is_same(found, wanted):
    described = [(tensor.dtype, tensor.shape, tensor.device) for tensor in (found, wanted)]
    return described[0] == described[1] and torch.equal(flat(found), flat(wanted))


def tensors_are_those_of_safetensors(client, path):
    wanted = safetensors.torch.load_file(path, device=GPU)
    for device in (GPU, 0, "cuda"):
        with forebay.safetensors.safe_open(MODEL, framework="pt", device=device, client=client) as model:
            found = model.get_tensors()
            REPORT.check(found.keys() == wanted.keys(), "the names of the tensors")
            for name, tensor in wanted.items():
                REPORT.check(is_same(found[name], tensor), f"tensor {name} on {device}")
        del found
    with forebay.safetensors.safe_open(MODEL, framework="pt", device=GPU, client=client) as model:
        for name in ("layer.000", "float32", "uint8"):
            whole = wanted[name]
            rows, columns = whole.shape
            many = [slice(2, rows - 3), (slice(None), slice(3, columns - 4)), (5, slice(None)), (slice(1, 9), 7), (..., 1)]
            for index in (*many, slice(4, 4)):
                REPORT.check(is_same(model.get_slice(name)[index], whole[index]), f"slice {index} of {name}")
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for name in list(wanted)[:20]:
                REPORT.check(is_same(model.get_tensor(name), wanted[name]), f"tensor {name} on another stream")


# Numbers.


def loads(model, device=GPU):
    with model as opened:
        # Forebay's reads all of them in one call.
        if hasattr(opened, "get_tensors"):
            return opened.get_tensors()
        return {name: opened.get_tensor(name) for name in opened.keys()}


def by_pinned_memory(client):
    """The way of those without our CUDA: tensors in memory that torch pins, and torch's copies."""
    found, forebay.safetensors._has_cuda = forebay.safetensors._has_cuda, lambda _: False
    try:
        return loads(forebay.safetensors.safe_open(MODEL, framework="pt", device=GPU, client=client))
    finally:
        forebay.safetensors._has_cuda = found


def columns(client):
    with forebay.safetensors.safe_open(MODEL, framework="pt", device=GPU, client=client) as model:
        return [model.get_slice(f"layer.{number:03}")[:, :512] for number in range(8)]


def measured(title, ways):
    """Prints a table of ways ``name -> (bytes, call)``."""
    seconds = {name: [] for name in ways}
    for number in range(ROUNDS + 1):
        for name, (_, call) in ways.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            kept = call()
            torch.cuda.synchronize()
            if number > 0:
                seconds[name].append(time.perf_counter() - began)
            del kept
    print(f"\n{title}\n\n| way | GB/s | ms, median | from | to |\n| --- | ---: | ---: | ---: | ---: |")
    for name, (size, _) in ways.items():
        took = [value * 1e3 for value in seconds[name]]
        median = statistics.median(took)
        print(f"| {name} | {size / median / 1e6:.1f} | {median:.1f} | {min(took):.1f} | {max(took):.1f} |")
    print(flush=True)


def numbers(client, path, copy):
    of_model = path.stat().st_size
    ours = lambda: loads(forebay.safetensors.safe_open(MODEL, framework="pt", device=GPU, client=client))  # noqa: E731
    theirs = lambda place: loads(safetensors.safe_open(place, framework="pt", device=GPU))  # noqa: E731
    measured("A model to the GPU", {
        "forebay, its cache in the process": (of_model, ours),
        "forebay, by torch's pinned memory": (of_model, lambda: by_pinned_memory(client)),
        f"safetensors, {path.parent.parent}": (of_model, lambda: theirs(path)),
        f"safetensors, a copy in {copy.parent.parent} (page cache)": (of_model, lambda: theirs(copy)),
    })
    measured("An eighth of the columns of 8 tensors", {"forebay, its cache in the process": (64 * MIB, lambda: columns(client))})
    pinned, into = torch.empty(GIB, dtype=torch.uint8, pin_memory=True), torch.empty(GIB, dtype=torch.uint8, device=GPU)
    pageable = torch.ones(GIB, dtype=torch.uint8)
    with client.open(NAME) as file:
        measured("1 GiB", {
            "forebay, its cache in the process": (GIB, lambda: file.read_into_device(into.data_ptr(), 0, GIB, stream=here())),
            "forebay, 1000 reads of 4 KiB": (4096 * 1000, lambda: client.read_into_device(
                [(file, number << 20, into.data_ptr() + 4096 * number, 4096) for number in range(1000)], stream=here())),
            "torch, from pinned memory": (GIB, lambda: into.copy_(pinned)),
            "torch, from other memory": (GIB, lambda: into.copy_(pageable)),
        })


# A worker in another process.


@contextlib.contextmanager
def worker(program, directory, place):
    settings = {
        "mounts": f"/=file://{directory}", "network.shared_memory": "on", "network.shared_memory_dir": place / "windows",
        "worker.memory.prewarm": "false", "worker.memory.size": "8GiB", "worker.memory.huge_pages": "false",
        "worker.rpc.bind.host": "127.0.0.1", "worker.rpc.port": 0, "worker.web.port": 0,
    }
    options = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    log = place / "worker.log"
    with log.open("w") as said:
        process = subprocess.Popen([program, "worker", *options], stdout=subprocess.DEVNULL, stderr=said)
    try:
        deadline = time.monotonic() + 30
        while "worker listening on " not in log.read_text() or not log.read_text().endswith("\n"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the worker does not listen: {log.read_text()}")
            time.sleep(0.05)
        yield log.read_text().split("worker listening on ", 1)[1].split()[0]
    finally:
        process.terminate()
        process.wait(30)


def a_worker_on_this_host(program, directory, place, whole):
    with worker(program, directory, place) as address:
        shared = {"network_shared_memory": "on", "network_shared_memory_dir": str(place / "windows")}
        with forebay.Client(workers=address, client_memory_size="64MiB", **shared) as client:
            target, is_seen = Target(LENGTH), False
            deadline = time.monotonic() + 20
            # It looks for the worker's memory in the background.
            while not is_seen and time.monotonic() < deadline:
                client.read_into_device([(NAME, 0, target.address, LENGTH)], stream=here())
                view = client.view(NAME, 512 * MIB, MIB)
                command = [program, "stats", "--all", "--json", "--workers", address]
                stats = subprocess.run(command, capture_output=True, check=True)
                is_seen = json.loads(stats.stdout)["window"]["pinned_bytes"] > 0
                del view
            print(f"    the worker's memory is {'seen' if is_seen else 'NOT seen'} by the client")
            REPORT.check(target.has(whole), "a file from a worker")
            for function in (sizes_and_offsets, many_reads_in_one_call, threads_and_streams):
                function(client, whole)
            of_model = (pathlib.Path(directory) / MODEL[1:]).stat().st_size
            into = torch.empty(GIB, dtype=torch.uint8, device=GPU)
            with client.open(NAME) as file:
                measured("From a worker's memory on this host", {
                    "1 GiB": (GIB, lambda: file.read_into_device(into.data_ptr(), 0, GIB, stream=here())),
                    "a model": (of_model, lambda: loads(
                        forebay.safetensors.safe_open(MODEL, framework="pt", device=GPU, client=client))),
                })
            with forebay.safetensors.safe_open(MODEL, framework="pt", device=GPU, client=client) as model:
                wanted = safetensors.torch.load_file(pathlib.Path(directory) / MODEL[1:], device=GPU)
                for name, tensor in model.get_tensors().items():
                    REPORT.check(is_same(tensor, wanted[name]), f"tensor {name} of a worker")


def plain(place):
    """No setting of this machine's counts."""
    for name in [name for name in os.environ if name.startswith("FOREBAY_")]:
        del os.environ[name]
    (place / "empty.toml").touch()
    os.environ |= {"FOREBAY_CONFIG": str(place / "empty.toml"), "FOREBAY_RUN_DIR": str(place / "run")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=int, default=4, help="of the model (default: 4)")
    parser.add_argument("--tmpfs", default="/dev/shm", help="where files lie, if there is room (default: /dev/shm)")
    parser.add_argument("--disk", default=tempfile.gettempdir(), help="where a copy of the model lies")
    parser.add_argument("--program", help="the program forebay: a worker in a process of its own is read from, too")
    given = parser.parse_args()
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    logging.getLogger("forebay").addHandler(Warnings(logging.WARNING))
    needed = given.gigabytes * GIB + LENGTH + 64 * MIB
    has_room = os.path.isdir(given.tmpfs) and shutil.disk_usage(given.tmpfs).free > needed
    if not has_room:
        print(f"{given.tmpfs} has no room for {needed >> 20} MiB: files lie in {given.disk}")
    with tempfile.TemporaryDirectory(dir=given.tmpfs if has_room else given.disk) as place, \
            tempfile.TemporaryDirectory(dir=given.disk) as other:
        place, other = pathlib.Path(place), pathlib.Path(other)
        plain(other)
        with contextlib.suppress(OSError):
            print(pathlib.Path("/proc/driver/nvidia/version").read_text().splitlines()[0])
        print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, safetensors {safetensors.__version__}, "
              f"forebay {forebay.__version__}, Python {sys.version.split()[0]}, Linux {os.uname().release}")
        REPORT.check(_native.cuda_devices() == torch.cuda.device_count(), f"{_native.cuda_devices()} GPUs")
        origin = place / "origin"
        origin.mkdir()
        whole, model = random_bytes(LENGTH, 42), origin / MODEL[1:]
        whole.cpu().numpy().tofile(origin / NAME[1:])
        make_model(model, given.gigabytes)
        copy = other / "copy" / MODEL[1:]
        copy.parent.mkdir()
        shutil.copyfile(model, copy)
        torch.cuda.synchronize()
        REPORT.run(the_driver_by_itself)
        memory = f"{given.gigabytes + 3}GiB"
        with forebay.Client(up=f"file://{origin}", worker_memory_size=memory, worker_memory_prewarm=False) as client:
            for section in (sizes_and_offsets, many_reads_in_one_call, copies_come_after_what_the_stream_has,
                            threads_and_streams, captures_of_graphs_go_on):
                REPORT.run(section, client, whole)
            REPORT.run(what_is_refused, client)
            REPORT.run(cancelled_reads_copy_no_more, client, origin)
            torch.cuda.empty_cache()
            REPORT.run(tensors_are_those_of_safetensors, client, model)
            REPORT.run(numbers, client, model, copy)
            # After all of that.
            REPORT.run(sizes_and_offsets, client, whole)
        if given.program:
            REPORT.run(a_worker_on_this_host, given.program, origin, other, whole)
        else:
            print("  skipped: a worker on this host, whose memory the GPU reads itself: `--program` does not name forebay")
    # Its log is handed out a few times a second.
    time.sleep(0.6)
    for line in dict.fromkeys(REPORT.said):
        print(f"forebay said: {line}")
    print(f"{REPORT.checks} checks, {len(REPORT.wrong)} wrong")
    return 1 if REPORT.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
