"""geesefs: a file system that reads and lists over S3."""

from __future__ import annotations

import os
import subprocess
import time

from commands import SOON
from endpoint import BUCKET, Endpoint, endpoint, installed
from suite import Client, Suite

PROGRAM = installed("geesefs", "scripts/peers.sh says where it comes from")


class Geesefs(Client):
    #: It remembers what it has read, and what a file was.
    gets_one_version = False

    def __init__(self, place: Endpoint) -> None:
        self.mount = place.scratch / "mount"

    def get(self, key: str) -> bytes:
        return (self.mount / key).read_bytes()

    def range(self, key: str, start: int, end: int) -> bytes:
        with (self.mount / key).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), end - start, start)

    def size(self, key: str) -> int:
        return (self.mount / key).stat().st_size

    def is_there(self, key: str) -> bool:
        return (self.mount / key).is_file()

    def keys(self, prefix: str) -> list[str]:
        return sorted(str(path.relative_to(self.mount)) for path in (self.mount / prefix).rglob("*") if path.is_file())

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        found = [(f"{prefix}{entry.name}", entry.is_dir()) for entry in os.scandir(self.mount / prefix)]
        return [f"{key}/" for key, is_directory in found if is_directory], [key for key, is_directory in found if not is_directory]


def version() -> str:
    # On standard error.
    said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, timeout=SOON)
    return (said.stdout + said.stderr).split("version ", 1)[1].split()[0]


if not os.access("/dev/fuse", os.R_OK | os.W_OK):
    print("skipped: /dev/fuse is not there, or not for this user: nothing can be mounted")
    raise SystemExit(0)
with endpoint() as place:
    client = Geesefs(place)
    client.mount.mkdir()
    options = ["-f", "--endpoint", place.url, "--region", "us-east-1", "--no-detect", "--list-type", "2", "--stat-cache-ttl", "0s"]
    command: list[object] = [PROGRAM, *options, "-o", "ro", BUCKET, client.mount]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + SOON
        while not client.mount.is_mount():
            assert process.poll() is None and time.monotonic() < deadline, "geesefs does not mount"
            time.sleep(0.05)
        Suite(place, client).run("geesefs", version())
    finally:
        subprocess.run(["umount", "--lazy", str(client.mount)], check=False)
        process.terminate()
        process.wait(SOON)
