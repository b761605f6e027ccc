"""What every client is asked to do, as far as it can, and what has to come of it at the origin.

A client is a class with the methods of [`Client`] that it has something for. What is read is compared with what was written into the
origin's directory, and what is written with what is there then.
"""

from __future__ import annotations

import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

from common import ran
from endpoint import Endpoint

MIB = 1 << 20
#: Of several blocks, and no whole number of them.
LARGE = 20 * MIB + 123
#: More than a page of a listing has.
MANY = 1100
SOON = 30.0
#: Characters that clients encode, each in its own way.
AWKWARD = "names/a b+c&d=ü~(1)'.txt"


class Client:
    """Methods that a client has nothing for are not there."""

    #: Whether `get` is one request, or several that ask for one version: others may get parts of two, of any server.
    gets_one_version = True

    def keys(self, prefix: str) -> list[str]:
        """All keys below a prefix, as they are listed."""
        raise NotImplementedError

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        """Common prefixes, each with its `/`, and keys, up to the next `/`."""
        raise NotImplementedError

    def size(self, key: str) -> int:
        raise NotImplementedError

    def is_there(self, key: str) -> bool:
        raise NotImplementedError

    def tag(self, key: str) -> str:
        """The entity tag."""
        raise NotImplementedError

    def get(self, key: str) -> bytes:
        raise NotImplementedError

    def range(self, key: str, start: int, end: int) -> bytes:
        raise NotImplementedError

    def last(self, key: str, count: int) -> bytes:
        """The last bytes, without knowing how many there are."""
        raise NotImplementedError

    def get_unless(self, key: str, tag: str) -> bytes | None:
        """Nothing, if the object has this tag."""
        raise NotImplementedError

    def get_if(self, key: str, tag: str) -> bytes | None:
        """Nothing, if the object has another tag."""
        raise NotImplementedError

    def pieces(self, key: str) -> Iterator[bytes]:
        """The object as it arrives."""
        raise NotImplementedError

    def url(self, key: str) -> str:
        """One that is signed, to get the object."""
        raise NotImplementedError

    def url_to_put(self, key: str) -> str:
        raise NotImplementedError

    def put(self, key: str, content: bytes) -> None:
        raise NotImplementedError

    def put_in_parts(self, key: str, content: bytes) -> None:
        raise NotImplementedError

    def copy(self, source: str, target: str) -> None:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError

    def delete_all(self, keys: list[str]) -> None:
        """Those of a list, with as few requests as the client makes."""
        raise NotImplementedError


class Suite:
    """The checks, in the order of the table."""

    def __init__(self, place: Endpoint, client: Client) -> None:
        self.place, self.client = place, client
        self.done: list[str] = []

    def run(self, name: str, version: str | None = None, besides: str | None = None) -> None:
        """Runs what the client can do, and writes down what that was."""
        self.fill()
        for words, methods, check in self.checks():
            if all(getattr(type(self.client), method) is not getattr(Client, method) for method in methods):
                began = time.monotonic()
                check()
                self.done.append(words)
                print(f"{name}: {words}: {time.monotonic() - began:.1f} s", flush=True)
        ran(name, ", ".join([*self.done, *([besides] if besides else [])]), version)

    def checks(self) -> list[tuple[str, tuple[str, ...], Callable[[], None]]]:
        return [
            ("list in pages", ("keys",), self.lists_in_pages),
            ("delimiter", ("level",), self.lists_a_level),
            ("head", ("size", "is_there"), self.looks),
            ("get", ("get",), self.reads),
            ("ranges", ("range",), self.reads_ranges),
            ("suffix ranges", ("last",), self.reads_the_end),
            ("`If-None-Match`", ("tag", "get_unless"), self.reads_what_changed),
            ("`If-Match`", ("tag", "get_if"), self.reads_one_version),
            ("an object that is replaced", ("get",), self.sees_what_is_replaced),
            ("one that is replaced while it is read", ("pieces",), self.never_mixes_versions),
            ("presigned GET", ("url",), self.reads_by_url),
            ("presigned PUT", ("url_to_put",), self.writes_by_url),
            ("put", ("put",), self.writes),
            ("upload in parts", ("put_in_parts",), self.writes_in_parts),
            ("copy", ("copy",), self.copies),
            ("delete", ("delete",), self.deletes),
            ("delete many", ("delete_all",), self.deletes_many),
        ]

    # What is there.

    def write(self, key: str, content: bytes) -> None:
        """At the origin, as a whole and without Forebay."""
        path = self.place.origin / key
        path.parent.mkdir(parents=True, exist_ok=True)
        # Beside the bucket: it is no object of it.
        beside = self.place.scratch.parent / "new"
        beside.write_bytes(content)
        beside.rename(path)

    def read(self, key: str) -> bytes:
        return (self.place.origin / key).read_bytes()

    def fill(self) -> None:
        self.write("small", b"what a cache must never get wrong")
        self.write("empty", b"")
        self.write("large", content(1, LARGE))
        self.write(AWKWARD, b"awkward")
        for number in range(25):
            self.write(f"tree/{number:02}", content(number, 1000 + number))
        self.write("tree/deep/end", b"end")
        self.write("tree/deeper/end", b"end")
        for number in range(MANY):
            self.write(f"many/{number:04}", b"")

    # Reads.

    def lists_in_pages(self) -> None:
        same(self.client.keys("many/"), [f"many/{number:04}" for number in range(MANY)])
        same(self.client.keys("names/"), [AWKWARD])
        tree = [*(f"tree/{number:02}" for number in range(25)), "tree/deep/end", "tree/deeper/end"]
        same(self.client.keys("tree/"), tree)

    def lists_a_level(self) -> None:
        prefixes, keys = self.client.level("tree/")
        same(sorted(prefixes), ["tree/deep/", "tree/deeper/"])
        same(sorted(keys), [f"tree/{number:02}" for number in range(25)])
        prefixes, keys = self.client.level("")
        same(sorted(prefixes), ["many/", "names/", "tree/"])
        same(sorted(keys), ["empty", "large", "small"])

    def looks(self) -> None:
        same([self.client.size(key) for key in ("small", "empty", "large", AWKWARD)], [33, 0, LARGE, 7])
        same([self.client.is_there(key) for key in ("small", "nothing", "tree/nothing")], [True, False, False])

    def reads(self) -> None:
        for key in ("small", "empty", "large", AWKWARD, "tree/deep/end"):
            same(self.client.get(key), self.read(key))
        # Once more, from the cache.
        same(self.client.get("large"), self.read("large"))

    def reads_ranges(self) -> None:
        whole = self.read("large")
        for start, end in ((0, 1), (4 * MIB - 1, 4 * MIB + 1), (MIB, 9 * MIB), (LARGE - 1, LARGE)):
            same(self.client.range("large", start, end), whole[start:end])

    def reads_the_end(self) -> None:
        same(self.client.last("large", 1000), self.read("large")[-1000:])

    def reads_what_changed(self) -> None:
        self.write("conditional", b"first")
        tag = self.client.tag("conditional")
        same(self.client.get_unless("conditional", tag), None)
        same(self.client.get_unless("conditional", '"another"'), b"first")
        self.write("conditional", b"the second")
        until(lambda: self.client.get_unless("conditional", tag), b"the second", None)

    def reads_one_version(self) -> None:
        self.write("versions", b"first")
        tag = self.client.tag("versions")
        same(self.client.get_if("versions", tag), b"first")
        same(self.client.get_if("versions", '"another"'), None)
        self.write("versions", b"the second")
        until(lambda: self.client.get_if("versions", tag), None, b"first")

    def sees_what_is_replaced(self) -> None:
        first, second = content(2, 9 * MIB), content(3, 9 * MIB + 1)
        self.write("replaced", first)
        same(self.client.get("replaced"), first)
        self.write("replaced", second)
        until(lambda: self.client.get("replaced"), second, first if self.client.gets_one_version else ...)

    def never_mixes_versions(self) -> None:
        # Of more than the worker has read ahead and the sockets hold: what is read at the end was replaced before.
        first, second = content(4, 3 * LARGE), content(5, 3 * LARGE)
        self.write("under-a-reader", first)
        found, failed = bytearray(), False
        try:
            for piece in self.client.pieces("under-a-reader"):
                if not found:
                    self.write("under-a-reader", second)
                found += piece
        except Exception as error:
            # Of a body that is too short, as each client has it.
            print(f"it ends with {type(error).__name__}: {str(error)[:200]}")
            failed = True
        assert first.startswith(found), "bytes of another version follow those of the first"
        assert failed or len(found) == len(first), f"{len(found)} bytes of {len(first)}, and no error"

        def again() -> bytes | None:
            try:
                return b"".join(self.client.pieces("under-a-reader"))
            except Exception as error:
                # It is told what the object was until it is asked for, and then that this is gone.
                print(f"and then with {type(error).__name__}: {str(error)[:200]}")
                return None

        until(again, second, ...)

    def reads_by_url(self) -> None:
        for key in ("small", "large", AWKWARD):
            url = self.client.url(key)
            same(asked(url), self.read(key))
        same(asked(self.client.url("large"), headers={"Range": "bytes=5-9"}), self.read("large")[5:10])
        wrong = self.client.url("small").replace("/small", "/empty")
        same(status(wrong), 403)

    # Writes.

    def writes_by_url(self) -> None:
        asked(self.client.url_to_put("written/by-url"), method="PUT", data=b"by whoever has the URL")
        same(self.read("written/by-url"), b"by whoever has the URL")

    def writes(self) -> None:
        for key, data in (("written/small", b"by a client"), ("written/empty", b""), (f"written/{AWKWARD}", content(6, 3 * MIB))):
            self.client.put(key, data)
            same(self.read(key), data)
        # Over one that is there, and was read.
        self.client.put("written/small", b"once more")
        same(self.read("written/small"), b"once more")
        self.reads_back("written/small", b"once more")

    def writes_in_parts(self) -> None:
        data = content(7, LARGE)
        self.client.put_in_parts("written/parts", data)
        same(self.read("written/parts"), data)
        self.reads_back("written/parts", data)

    def reads_back(self, key: str, data: bytes) -> None:
        if type(self.client).get is not Client.get:
            same(self.client.get(key), data)

    def copies(self) -> None:
        for source, target in (("small", "copied/small"), (AWKWARD, f"copied/{AWKWARD}"), ("large", "copied/large")):
            self.client.copy(source, target)
            same(self.read(target), self.read(source))

    def deletes(self) -> None:
        for key in ("gone/one", f"gone/{AWKWARD}"):
            self.write(key, b"soon gone")
            self.client.delete(key)
            assert not (self.place.origin / key).exists(), f"{key} is still there"

    def deletes_many(self) -> None:
        keys = [f"gone/many/{number:02} &<ü" for number in range(30)]
        for key in keys:
            self.write(key, b"soon gone")
        self.write("gone/stays", b"")
        self.client.delete_all(keys)
        left = [key for key in keys if (self.place.origin / key).exists()]
        same(left, [])
        same(self.read("gone/stays"), b"")


def content(seed: int, size: int) -> bytes:
    """Bytes that no two objects share."""
    return random.Random(seed).randbytes(size)


def same(found: Any, expected: Any) -> None:
    """Fails without printing megabytes."""
    if found == expected:
        return
    if isinstance(found, bytes) and isinstance(expected, bytes):
        pairs = enumerate(zip(found, expected, strict=False))
        at = next((at for at, (one, other) in pairs if one != other), min(len(found), len(expected)))
        raise AssertionError(f"{len(found)} bytes instead of {len(expected)}, others from {at} on")
    raise AssertionError(f"{str(found)[:2000]} instead of {str(expected)[:2000]}")


def until(ask: Callable[[], Any], expected: Any, before: Any) -> None:
    """Asks until the answer is what is expected; only what was before may come until then, or anything (`...`)."""
    deadline = time.monotonic() + SOON
    while (found := ask()) != expected:
        if before is not ...:
            same(found, before)
        assert time.monotonic() < deadline, "what was replaced is still remembered"
        time.sleep(0.1)


def asked(url: str, method: str = "GET", data: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    """What a client that knows no signatures gets."""
    request = urllib.request.Request(url, method=method, data=data, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=SOON) as answer:
            found: bytes = answer.read()
            return found
    except urllib.error.HTTPError as error:
        error.add_note(error.read(4096).decode(errors="replace"))
        raise


def status(url: str) -> int:
    try:
        asked(url)
    except urllib.error.HTTPError as error:
        return error.code
    return 200
