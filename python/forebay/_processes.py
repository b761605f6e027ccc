"""Clients over the life of a process: forks, and the end of the interpreter."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from typing import Protocol

from forebay import _logging, _native


class OfProcess(Protocol):
    """What has connections, which are those of one process."""

    def forget(self) -> None:
        """In a forked child: leave what is the parent's alone. The next call connects anew."""

    def end(self) -> None:
        """End in order."""


_all: weakref.WeakSet[OfProcess] = weakref.WeakSet()


def register(client: OfProcess) -> None:
    """Have ``client`` told of forks and of the end."""
    _all.add(client)


def _after_fork_in_child() -> None:
    _logging.forget()
    for client in list(_all):
        client.forget()
    _native.after_fork_in_child()


def _at_exit() -> None:
    for client in list(_all):
        # Nobody is there any more to be told.
        with contextlib.suppress(Exception):
            client.end()
    _logging.end()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
