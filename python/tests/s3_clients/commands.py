"""Clients that are commands: run with a deadline, and their objects are files of a scratch directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

#: How long one may take.
SOON = 120.0


class Failed(Exception):
    """A command has failed."""

    def __init__(self, command: list[str], status: int, said: str) -> None:
        super().__init__(f"{' '.join(command)} ended with {status}: {said}")
        self.status, self.said = status, said


def said_by(command: list[str], data: bytes | None = None) -> bytes:
    """What a command prints. It raises if that fails."""
    done = subprocess.run(command, input=data or b"", capture_output=True, timeout=SOON)
    if done.returncode != 0:
        raise Failed(command, done.returncode, done.stderr.decode(errors="replace")[-4000:])
    return done.stdout


class Files:
    """Files for what a command reads and writes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.count = 0

    def new(self) -> Path:
        self.count += 1
        return self.directory / f"file-{self.count}"

    def of(self, content: bytes) -> Path:
        path = self.new()
        path.write_bytes(content)
        return path

    def taken(self, path: Path) -> bytes:
        found = path.read_bytes()
        path.unlink()
        return found
