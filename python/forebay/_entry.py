"""Names, as they are listed."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A name and what it is."""

    #: Its path in the namespace.
    path: str
    #: Whether it is a file; otherwise it is a directory.
    is_file: bool
    #: Bytes; 0 for a directory.
    size: int
    #: Last modification, nanoseconds since 1970; 0 where the origin knows none.
    modified_ns: int
    #: The entity tag that the origin gave it, quotes included.
    etag: str | None
    #: A name of this version of the file: it changes whenever the object is replaced.
    version: str | None
    #: Whether the namespace takes changes here.
    writable: bool

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return not self.is_file

    @property
    def name(self) -> str:
        """The last part of the path; empty for the root."""
        return self.path.rpartition("/")[2]


def checked_depth(maxdepth: int | None) -> int | None:
    """How many levels of names to list, if that makes sense."""
    if maxdepth is not None and maxdepth < 1:
        raise ValueError(f"maxdepth is {maxdepth}; give a number from 1 on")
    return maxdepth
