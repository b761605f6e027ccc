"""`forebay s3` in front of a worker and an S3 server, each in a process of its own, for the clients here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from common import running

#: How long a program here may take, all of it: on a machine that compiles meanwhile, several times what it does otherwise.
WITHIN_SECONDS = 540
#: How long the endpoint remembers what an object is.
REMEMBERED = "1s"
#: Of the origin's server. The endpoint's clients have keys of their own.
ORIGIN = {
    "AWS_ACCESS_KEY_ID": "forebay-test",
    "AWS_SECRET_ACCESS_KEY": "forebay-test-secret",
    "AWS_REGION": "us-east-1",
}
BUCKET = "data"


class Key(NamedTuple):
    """What a client signs with."""

    access: str
    secret: str


class Server(NamedTuple):
    """The origin, as its own clients reach it."""

    url: str
    access: str
    secret: str


class Endpoint(NamedTuple):
    """Where a client finds the bucket, and where the test finds what is in it."""

    #: `http://127.0.0.1:PORT`, or `https://…`.
    url: str
    #: A writer's.
    key: Key
    #: A reader's.
    reader: Key
    #: The bucket's directory at the origin.
    origin: Path
    #: For what a client keeps: empty at first.
    scratch: Path
    server: Server

    @property
    def host(self) -> str:
        return self.url.split("://", 1)[1]


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"this took more than {WITHIN_SECONDS} seconds")


def _plain_environment(place: Path) -> None:
    """No setting of this machine counts, for any of them."""
    foreign = ("FOREBAY_", "AWS_", "RCLONE_", "S3_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    for name in [name for name in os.environ if name.upper().startswith(foreign)]:
        del os.environ[name]
    (place / "home").mkdir()
    os.environ |= {"HOME": str(place / "home"), "NO_PROXY": "127.0.0.1", "AWS_EC2_METADATA_DISABLED": "true"}
    os.environ |= {"AWS_CONFIG_FILE": str(place / "no-config"), "AWS_SHARED_CREDENTIALS_FILE": str(place / "no-credentials")}


@contextlib.contextmanager
def endpoint(more_buckets: Sequence[str] = (), is_tls: bool = False, domains: Sequence[str] = ()) -> Iterator[Endpoint]:
    """One with an empty bucket, and with more of these names, and this process's environment as a client of it has it."""
    # Read first: the environment is made plain.
    program = Path(os.environ["PROGRAM_FOREBAY"])
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(WITHIN_SECONDS)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-s3-clients-")))
        _plain_environment(place)
        (place / "empty.toml").write_text("")
        buckets = [BUCKET, *more_buckets]
        for bucket in buckets:
            (place / "s3" / bucket).mkdir(parents=True)
        server: list[object] = [program.with_name("forebay-testkit-s3"), "--dir", place / "s3"]
        origin = stack.enter_context(running(server, "listening on ", place / "server.log"))
        env = os.environ | {"FOREBAY_CONFIG": str(place / "empty.toml"), "FOREBAY_RUN_DIR": str(place / "run")}
        secured = {role: _certificate(program, env, place, role) if is_tls else {} for role in ("worker", "writer")}
        settings = secured["worker"] | {
            "metadata.ttl": REMEMBERED,
            "mounts": ",".join(f"/{bucket}=s3://{bucket}" for bucket in buckets),
            "network.shared_memory": "off",
            "worker.memory.prewarm": "false",
            "worker.memory.size": "256MiB",
            "worker.rpc.bind.host": "127.0.0.1",
            "worker.rpc.port": "0",
            "worker.web.port": "0",
        }
        worker = [program, "worker", *_options(settings)]
        origins = env | ORIGIN | {"AWS_ENDPOINT_URL": origin}
        address = stack.enter_context(running(worker, "worker listening on ", place / "worker.log", origins))
        keys = [_key(program, env, place / "keys", role) for role in ("writer", "reader")]
        settings = {"client.web.port": "0", "metadata.ttl": REMEMBERED, "s3.credentials_file": str(place / "keys")} | secured["writer"]
        if domains:
            settings["s3.domains"] = ",".join(domains)
        command = [program, "s3", "--listen", "127.0.0.1:0", "--workers", address, *_options(settings)]
        log = place / "endpoint.log"
        host = stack.enter_context(running(command, "S3 endpoint listening on ", log, env))
        os.environ |= {"AWS_ACCESS_KEY_ID": keys[0].access, "AWS_SECRET_ACCESS_KEY": keys[0].secret, "AWS_REGION": "us-east-1"}
        url = f"{'https' if is_tls else 'http'}://{host}"
        os.environ |= {"AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": url}
        if is_tls:
            os.environ |= dict.fromkeys(("AWS_CA_BUNDLE", "SSL_CERT_FILE"), secured["writer"]["security.ca_file"])
        (place / "scratch").mkdir()
        try:
            server_of = Server(origin, ORIGIN["AWS_ACCESS_KEY_ID"], ORIGIN["AWS_SECRET_ACCESS_KEY"])
            yield Endpoint(url, keys[0], keys[1], place / "s3" / BUCKET, place / "scratch", server_of)
        except BaseException:
            print(f"the endpoint's log:\n{log.read_text()}the worker's:\n{(place / 'worker.log').read_text()}", flush=True)
            raise


def _options(settings: dict[str, str]) -> list[object]:
    return [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]


def _certificate(program: Path, env: dict[str, str], place: Path, role: str) -> dict[str, str]:
    """Settings of a process of this role, which proves it by a certificate of the cluster's key, and is at this address."""
    key, directory = place / "cluster.key", place / f"tls-{role}"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_bytes(subprocess.run([program, "key", "create"], env=env, capture_output=True, check=True).stdout)
    command: list[str | Path] = [program, "key", "issue", "--role", role, "--client", f"a-{role}", "--host", "127.0.0.1"]
    command += ["--output", directory, "-o", f"security.key_file={key}"]
    subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)
    files = {"cert_file": "tls.crt", "cert_key_file": "tls.key", "ca_file": "ca.crt"}
    return {"security.mode": "mtls"} | {f"security.{name}": str(directory / file) for name, file in files.items()}


def _key(program: Path, env: dict[str, str], keys: Path, role: str) -> Key:
    """Makes a key, and adds it to the endpoint's."""
    command = [program, "key", "s3", "--role", role, "--client", f"a-{role}"]
    line = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    keys.touch(mode=0o600)
    with keys.open("a") as file:
        file.write(line)
    return Key(*line.split()[:2])


def installed(name: str, whence: str = "Debian has it") -> str:
    """Where a program of this machine is that PyPI does not have. Without it, there is nothing to run."""
    if (path := shutil.which(name)) is None:
        print(f"skipped: {name} is not installed; {whence}")
        raise SystemExit(0)
    return path
