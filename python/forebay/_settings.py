"""What a client is made from: text, which is all of it that goes to other processes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

#: What settings may be: numbers, switches, sizes and durations as text (``"4MiB"``, ``"5s"``), and lists of them.
Setting = str | int | float | bool | os.PathLike[str] | Iterable[str] | None


class Settings(NamedTuple):
    """The arguments of a client, as the native module takes them."""

    etcd: tuple[str, ...]
    workers: tuple[str, ...]
    up: str | None
    config: str | None
    more: tuple[tuple[str, str], ...]

    @classmethod
    def of(
        cls,
        etcd: str | Iterable[str] | None,
        workers: str | Iterable[str] | None,
        up: str | os.PathLike[str] | None,
        config: str | os.PathLike[str] | None,
        settings: dict[str, Setting],
    ) -> Settings:
        """Of the arguments as a person writes them."""
        return cls(
            etcd=_listed(etcd),
            workers=_listed(workers),
            up=None if up is None else os.fspath(up),
            config=None if config is None else os.fspath(config),
            more=tuple((name, _text(value)) for name, value in settings.items() if value is not None),
        )

    def __repr__(self) -> str:
        """Where it reads from. Other settings may be secrets."""
        named = {"etcd": ",".join(self.etcd), "workers": ",".join(self.workers), "up": self.up}
        return ", ".join(f"{name}={value!r}" for name, value in named.items() if value)


def _listed(named: str | Iterable[str] | None) -> tuple[str, ...]:
    if named is None:
        return ()
    return tuple(named.split(",")) if isinstance(named, str) else tuple(named)


def _text(value: Setting) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Iterable):
        return ",".join(value)
    return str(value)
