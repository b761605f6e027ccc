"""``mv`` of fsspec: what was copied, and is still what it was, is removed.

fsspec copies what is there, and removes what is there then. In between, others may write; and two names may lead to one object, as under
two mounts of one origin: then a copy is what is there, or lies in the directory that is moved. So only what was there before is removed.
"""

# fsspec has no types.
# pyright: basic

from __future__ import annotations

import errno
from typing import Any

from fsspec.asyn import _run_coros_in_chunks


async def move(fs: Any, source: Any, target: Any, recursive: bool) -> None:
    """Copy names of a :class:`forebay.fs.ForebayFileSystem`, and then remove those.

    :raises OSError: ESTALE if one is not any more what was copied, and nothing is removed; ENOTEMPTY if others are in a directory, which
        stays with those.
    """
    names = await fs._expand_path(source, recursive=recursive)
    before = await _states(fs, names)
    await fs._copy(source, target, recursive=recursive, on_error="raise")
    now = await _states(fs, names)
    for name, state in now.items():
        if state != before.get(name):
            raise OSError(errno.ESTALE, "it was replaced while it was copied, and is not removed", name)
    await fs._rm_names(list(now), recursive)


async def _states(fs: Any, names: list[str]) -> dict[str, Any]:
    """What tells a file from what replaces it, by name; nothing of a directory. What is not there is left out."""
    asking = [fs._beside.stat(name, revalidate=True) for name in names]
    found: list[Any] = await _run_coros_in_chunks(asking, batch_size=fs.batch_size, nofiles=True, return_exceptions=True)
    states: dict[str, Any] = {}
    for name, entry in zip(names, found, strict=True):
        if isinstance(entry, FileNotFoundError):
            continue
        if isinstance(entry, BaseException):
            raise entry
        states[name] = (entry.version, entry.modified_ns) if entry.is_file else None
    return states
