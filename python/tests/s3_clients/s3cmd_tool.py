"""s3cmd, with a configuration that names the endpoint, and buckets in the path."""

from __future__ import annotations

from pathlib import Path

from commands import Failed, Files, said_by
from endpoint import BUCKET, Endpoint, endpoint
from suite import Client, Suite, content, same


class S3cmd(Client):
    def __init__(self, place: Endpoint) -> None:
        self.files = Files(place.scratch)
        self.config = place.scratch / "s3cfg"
        access, secret = place.key
        lines = ["[default]", f"access_key = {access}", f"secret_key = {secret}", "use_https = False"]
        # Without a place for the bucket's name in it, that is in the path.
        lines += [f"host_base = {place.host}", f"host_bucket = {place.host}"]
        self.config.write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str | Path) -> bytes:
        return said_by(["s3cmd", "--config", str(self.config), "--no-progress", *map(str, arguments)])

    def name(self, key: str) -> str:
        return f"s3://{BUCKET}/{key}"

    def _listed(self, *arguments: str) -> list[str]:
        lines = self.run("ls", *arguments).decode().splitlines()
        root = self.name("")
        return [line[line.index(root) + len(root) :] for line in lines]

    def keys(self, prefix: str) -> list[str]:
        return self._listed("--recursive", self.name(prefix))

    def level(self, prefix: str) -> tuple[list[str], list[str]]:
        found = self._listed(self.name(prefix))
        return [key for key in found if key.endswith("/")], [key for key in found if not key.endswith("/")]

    def _info(self, key: str) -> dict[str, str]:
        lines = self.run("info", self.name(key)).decode().splitlines()
        pairs = [line.strip().partition(":") for line in lines]
        return {field: value.strip() for field, _, value in pairs}

    def size(self, key: str) -> int:
        return int(self._info(key)["File size"])

    def is_there(self, key: str) -> bool:
        try:
            self._info(key)
        except Failed as failed:
            if "404" in failed.said:
                return False
            raise
        return True

    def get(self, key: str) -> bytes:
        path = self.files.new()
        self.run("get", self.name(key), path)
        return self.files.taken(path)

    def put(self, key: str, content: bytes) -> None:
        path = self.files.of(content)
        self.run("put", path, self.name(key))
        path.unlink()

    def put_in_parts(self, key: str, content: bytes) -> None:
        path = self.files.of(content)
        self.run("put", "--multipart-chunk-size-mb=5", path, self.name(key))
        path.unlink()

    def copy(self, source: str, target: str) -> None:
        self.run("cp", self.name(source), self.name(target))

    def delete(self, key: str) -> None:
        self.run("rm", self.name(key))

    def delete_all(self, keys: list[str]) -> None:
        self.run("rm", *map(self.name, keys))


def synchronized(place: Endpoint, client: S3cmd) -> None:
    """A tree there and back."""
    tree, back = place.scratch / "tree", place.scratch / "back"
    files = {"one": b"1", "deep/two": content(1, 1000), "deep/er/ü b": b"3"}
    for path, data in files.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_bytes(data)
    client.run("sync", f"{tree}/", client.name("synchronized/"))
    same({path: (place.origin / "synchronized" / path).read_bytes() for path in files}, files)
    back.mkdir()
    client.run("sync", client.name("synchronized/"), f"{back}/")
    same({path: (back / path).read_bytes() for path in files}, files)


with endpoint() as place:
    client = S3cmd(place)
    Suite(place, client).run("s3cmd", besides="`sync`")
    synchronized(place, client)
