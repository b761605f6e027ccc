"""rclone, with a remote of the provider `Other`, as for any server that is none of Amazon's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from commands import Failed, Files, said_by
from endpoint import BUCKET, Endpoint, endpoint, installed
from suite import Client, Suite, content, same

PROGRAM = installed("rclone")


class Rclone(Client):
    def __init__(self, place: Endpoint) -> None:
        self.files = Files(place.scratch)
        self.config = place.scratch / "rclone.conf"
        access, secret = place.key
        lines = ["[cache]", "type = s3", "provider = Other", f"endpoint = {place.url}"]
        lines += [f"access_key_id = {access}", f"secret_access_key = {secret}"]
        self.config.write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str | Path, data: bytes | None = None) -> bytes:
        common = ["--config", str(self.config), "--retries", "1", "--low-level-retries", "2"]
        return said_by([PROGRAM, *common, *map(str, arguments)], data)

    def name(self, key: str) -> str:
        return f"cache:{BUCKET}/{key}"

    def _listed(self, prefix: str, *arguments: str) -> list[Any]:
        return list(json.loads(self.run("lsjson", self.name(prefix), *arguments)))

    def keys(self, prefix: str) -> list[str]:
        below = self._listed(prefix, "--recursive", "--files-only", "--fast-list", "--no-modtime")
        return sorted(prefix + entry["Path"] for entry in below)

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        listed = self._listed(prefix, "--no-modtime")
        prefixes = [f"{prefix}{entry['Path']}/" for entry in listed if entry["IsDir"]]
        return prefixes, [prefix + entry["Path"] for entry in listed if not entry["IsDir"]]

    def _stat(self, key: str) -> Any:
        try:
            return json.loads(self.run("lsjson", "--stat", self.name(key)))
        except Failed as failed:
            # Of a directory, or an object, that is not there.
            if failed.status in (3, 4):
                return None
            raise

    def size(self, key: str) -> int:
        return int(self._stat(key)["Size"])

    def is_there(self, key: str) -> bool:
        found = self._stat(key)
        # A directory is whatever it does not find.
        return found is not None and not found["IsDir"]

    def get(self, key: str) -> bytes:
        path = self.files.new()
        self.run("copyto", self.name(key), path)
        return self.files.taken(path)

    def range(self, key: str, start: int, end: int) -> bytes:
        return self.run("cat", "--offset", str(start), "--count", str(end - start), self.name(key))

    def url(self, key: str) -> str:
        return self.run("link", "--expire", "1m", self.name(key)).decode().strip()

    def put(self, key: str, content: bytes) -> None:
        path = self.files.of(content)
        self.run("copyto", path, self.name(key))
        path.unlink()

    def put_in_parts(self, key: str, content: bytes) -> None:
        path = self.files.of(content)
        self.run("copyto", "--s3-upload-cutoff", "5M", "--s3-chunk-size", "5M", path, self.name(key))
        path.unlink()
        # Of a length that it does not know before.
        self.run("rcat", "--s3-chunk-size", "5M", self.name(key), data=content)

    def copy(self, source: str, target: str) -> None:
        self.run("copyto", self.name(source), self.name(target))

    def delete(self, key: str) -> None:
        self.run("deletefile", self.name(key))


def synchronized(place: Endpoint, client: Rclone) -> None:
    """A tree there and back, compared by rclone, too."""
    tree = place.scratch / "tree"
    files = {"one": b"1", "deep/two": content(1, 1000), "deep/er/ü b": b"3"}
    for path, data in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(data)
    client.run("sync", tree, client.name("synchronized"))
    same({path: (place.origin / "synchronized" / path).read_bytes() for path in files}, files)
    client.run("check", "--download", tree, client.name("synchronized"))
    (tree / "one").unlink()
    client.run("sync", tree, client.name("synchronized"))
    same((place.origin / "synchronized/one").exists(), False)
    client.run("purge", client.name("synchronized"))
    same([path for path in (place.origin / "synchronized").rglob("*") if path.is_file()], [])


def version() -> str:
    return said_by([PROGRAM, "version"]).decode().split()[1].removeprefix("v")


with endpoint() as place:
    client = Rclone(place)
    Suite(place, client).run("rclone", version(), besides="`sync`, `check`")
    synchronized(place, client)
