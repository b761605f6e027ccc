"""Clients of a cluster whose state is in etcd: a coordinator, and workers that come and go."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import forebay
import pytest

from .conftest import SOON
from .test_cluster import eventually

#: Of all processes: none of them goes, and one that has no processor for a moment, or waits for a disk, is not gone.
SETTINGS = {"cluster.lease_ttl": "30s", "cluster.etcd.timeout": "15s", "worker.memory.prewarm": "false"}


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process, which ends with the test."""
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(SOON)
        finally:
            process.kill()


def said_after(words: str, process: subprocess.Popen[bytes], log: Path) -> str:
    """What a process says after these words, once it does."""

    def is_said() -> bool:
        assert process.poll() is None, log.read_text()
        return words in log.read_text() and log.read_text().endswith("\n")

    eventually(f"{words!r} is said", is_said)
    return log.read_text().split(words, 1)[1].split()[0]


class Cluster:
    """An etcd and a coordinator, for workers."""

    def __init__(self, program: str, etcd: str, place: Path, stack: contextlib.ExitStack) -> None:
        self._program, self._place, self._stack = program, place, stack
        # Nobody else takes them in between: etcd starts next.
        with socket.create_server(("127.0.0.1", 0)) as client, socket.create_server(("127.0.0.1", 0)) as peer:
            self.url, to_peers = (f"http://127.0.0.1:{server.getsockname()[1]}" for server in (client, peer))
        command = [etcd, "--name", "m0", "--data-dir", str(place / "etcd"), "--log-level", "warn"]
        command += ["--listen-client-urls", self.url, "--advertise-client-urls", self.url, "--listen-peer-urls", to_peers]
        command += ["--initial-advertise-peer-urls", to_peers, "--initial-cluster", f"m0={to_peers}"]
        self._start("etcd", command)
        self.coordinator = self._says("coordinator", ["coordinator.bind.host=127.0.0.1", "coordinator.port=0"])

    def _start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        return self._stack.enter_context(running(command, self._place / f"{name}.log"))

    def _says(self, kind: str, settings: list[str], name: str | None = None) -> str:
        options = [part for setting in (*map("=".join, SETTINGS.items()), *settings) for part in ("-o", setting)]
        name = name or kind
        process = self._start(name, [self._program, kind, "--etcd", self.url, *options])
        return said_after(f"{kind} listening on ", process, self._place / f"{name}.log")

    def worker(self, name: str, origins: Path) -> None:
        """One more, which may read directories below this one."""
        settings = ["network.shared_memory=off", "worker.memory.size=64MiB", "worker.hostname=127.0.0.1", f"worker.name={name}"]
        settings += ["worker.rpc.bind.host=127.0.0.1", "worker.rpc.port=0", "worker.web.port=0"]
        self._says("worker", [*settings, f"cluster.mounts.directories={origins}"], name)

    def add(self, path: str, origin: Path) -> None:
        """A mount, for all of them."""
        command = [self._program, "mounts", "add", path, f"file://{origin}", "--coordinator", self.coordinator]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SOON)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    program, etcd = os.environ.get("PYTHON_TESTS_PROGRAM"), shutil.which("etcd")
    if not program:
        pytest.skip("the program forebay is not built: PYTHON_TESTS_PROGRAM does not name it")
    if etcd is None:
        pytest.skip("etcd is not installed (apt-get install etcd-server)")
    with tempfile.TemporaryDirectory(prefix="fb-") as place, contextlib.ExitStack() as stack:
        yield Cluster(program, etcd, Path(place), stack)


def test_a_client_reads_what_a_cluster_mounts_from_workers_as_they_come(cluster: Cluster, origin: Path) -> None:
    cluster.worker("one", origin.parent)
    cluster.add("/data", origin)
    with forebay.Client(etcd=cluster.url, client_memory_size="64MiB") as client:

        def is_there(path: str) -> bool:
            with contextlib.suppress(FileNotFoundError):
                return client.stat(path, revalidate=True).is_file
            return False

        eventually("the mount is seen", lambda: is_there("/data/small"))
        assert client.read("/data/large") == (origin / "large").read_bytes()
        # Another worker, and a mount that was added meanwhile.
        cluster.worker("two", origin.parent)
        cluster.add("/tree", origin / "tree")
        eventually("the other mount is seen", lambda: is_there("/tree/00"))
        for number in range(20):
            assert client.read(f"/tree/{number:02}") == (origin / f"tree/{number:02}").read_bytes()
        assert sorted(entry.path for entry in client.ls("/")) == ["/data", "/tree"]


def test_where_nobody_is_at_the_address_of_etcd_it_is_an_error_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        nobody = f"http://127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(OSError, match="etcd"), forebay.Client(etcd=nobody, cluster_etcd_timeout="1s") as client:
        client.stat("/")
