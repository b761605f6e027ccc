"""The wheel: the native module, and the program beside it as packages have it."""

import base64
import contextlib
import hashlib
import os
import pathlib
import random
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator

from environments import PACKAGE, ROOT, TARGET, environment, is_too_old

#: As in `build-system` of python/pyproject.toml.
MATURIN = re.search(r'"(maturin==[^"]+)"', (PACKAGE / "pyproject.toml").read_text())[1]
WHEELS = TARGET / "wheels"
#: What adds to the profile `release` for packages, and what builds with it.
PROFILE, DIST = ROOT / "scripts/dist.toml", ROOT / "scripts/dist.sh"
#: In the guide, around what the last wheel was like.
GUIDE, MEASURED = ROOT / "docs/python.md", re.compile(r"(<!-- wheel: begin -->\n).*?(<!-- wheel: end -->)", re.DOTALL)
#: Milliseconds that an import may take: the aim.
AIM = 150
#: Of the example in README.md. Here it is a directory, or served from one.
ORIGIN = "s3://my-bucket/datasets"
#: Compares what a client reads of an origin with the file that it is.
COMPARES = """
import pathlib, sys, forebay
origin, path = sys.argv[1:]
expected = pathlib.Path(path).read_bytes()
with forebay.Client(up=origin) as client:
    assert client.read("/weights") == expected
    ranges = [("/weights", 4097, 70000), ("/weights", len(expected) - 3, 9)]
    assert client.read_ranges(ranges) == [expected[4097:74097], expected[-3:]]
"""


def builder() -> int:
    """Installs what builds wheels, or says why that cannot be had here."""
    if is_too_old():
        return 1
    try:
        environment("build", [MATURIN])
    except subprocess.CalledProcessError as error:
        print(f"python: {MATURIN} cannot be installed from PyPI: {error}")
        return 1
    return 0


def wheel(interpreter: str, is_quick: bool, is_tried: bool) -> int:
    """Builds the wheel, and reads files with it in an environment that has nothing else."""
    python = environment("build", [MATURIN])
    # A script of the wheel beside the native module, of which maturin builds one or the other (ADR 0026).
    program = PACKAGE / "forebay.data/scripts/forebay"
    program.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(built_program(is_quick), program)
    if is_quick:
        subprocess.run(["strip", program], check=True)
    built = wheel_of_module(python, interpreter, is_quick, [])
    needed, promised = glibc_of(program), glibc_promised(built)
    # maturin looks at the module alone.
    if promised is not None and needed > promised:
        built.unlink()
        built = wheel_of_module(python, interpreter, is_quick, ["--compatibility", f"manylinux_2_{needed}"])
    without_places(built)
    sizes = f"{mebibytes(built)} MiB, of which the program is {mebibytes(program)} MiB before it is compressed"
    print(f"python: {built}, {sizes}")
    if not is_tried:
        return 0
    took = tried(built, interpreter)
    if took is None:
        return 1
    print(f"python: the example of the README works; import takes {took} ms, the median of five (aim: {AIM})")
    if os.environ.get("FOREBAY_BLESS") == "1":
        told = f"The wheel has {sizes}. `import forebay` took {took} ms, the median of five (aim: {AIM} ms).\n"
        GUIDE.write_text(MEASURED.sub(lambda found: found[1] + told + found[2], GUIDE.read_text()))
    return 0


def built_program(is_quick: bool) -> pathlib.Path:
    """The program: that of packages, in a directory of its own."""
    if is_quick:
        subprocess.run(["cargo", "build", "--release", "--locked", "--bin", "forebay"], cwd=ROOT, check=True)
        return TARGET / "release/forebay"
    said = subprocess.run([DIST, TARGET / "dist"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return pathlib.Path(said.split()[-1])


def wheel_of_module(python: pathlib.Path, interpreter: str, is_quick: bool, more: list[str]) -> pathlib.Path:
    """Builds the native module, and the wheel of it and of what is beside it."""
    before = {path: path.stat().st_mtime_ns for path in WHEELS.glob("*.whl")}
    command: list[object] = [python, "-m", "maturin", "build", "--release", "--locked", "--out", WHEELS, "--interpreter", interpreter]
    command += ["--manifest-path", PACKAGE / "Cargo.toml", *more]
    if not is_quick:
        # What it shares with the program is built by then.
        command = [DIST, "--run", TARGET / "dist", *command, "--config", PROFILE]
    subprocess.run(command, cwd=ROOT, check=True)
    [built] = [path for path in WHEELS.glob("*.whl") if before.get(path) != path.stat().st_mtime_ns]
    return built


def without_places(built: pathlib.Path) -> None:
    """Takes where a wheel was built out of its list of parts, which maturin makes: the same commit is to be the same bytes in another
    directory. All else stays as it is, with its times: those are SOURCE_DATE_EPOCH's already."""
    packed = built.with_suffix(".packed")
    with zipfile.ZipFile(built) as old, zipfile.ZipFile(packed, "w") as new:
        contents = {entry.filename: old.read(entry) for entry in old.infolist()}
        for name in contents:
            if ".dist-info/sboms/" in name:
                contents[name] = contents[name].replace(ROOT.as_uri().encode(), b"file:///forebay")
        [record] = [name for name in contents if name.endswith(".dist-info/RECORD")]
        lines = [recorded(name, contents[name]) for name in contents if name != record]
        contents[record] = "".join([*lines, f"{record},,\n"]).encode()
        for entry in old.infolist():
            new.writestr(entry, contents[entry.filename])
    packed.replace(built)


def recorded(name: str, content: bytes) -> str:
    """The line of a file in a wheel's RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def glibc_of(program: pathlib.Path) -> int:
    """The minor version of the glibc that a program needs: each version that it names is written in it."""
    return max((int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", program.read_bytes())), default=0)


def glibc_promised(built: pathlib.Path) -> int | None:
    """That of the oldest glibc that a wheel says it runs with, if it says one."""
    return min((int(minor) for minor in re.findall(r"manylinux_2_(\d+)", built.name)), default=None)


def mebibytes(path: pathlib.Path) -> str:
    return f"{path.stat().st_size / (1 << 20):.1f}"


def tried(built: pathlib.Path, interpreter: str) -> int | None:
    """Installs it and runs what users run first. The milliseconds that an import takes, if all of it works."""
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        subprocess.run([interpreter, "-m", "venv", place / "venv"], check=True)
        python = place / "venv/bin/python"
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", built]
        subprocess.run(pip, check=True)
        objects = place / "s3" / ORIGIN.removeprefix("s3://")
        fill(objects)
        with bucket(place / "s3") as variables:
            if not works(python, ORIGIN, objects, variables):
                return None
        took = "import time; began = time.perf_counter(); import forebay; print(round((time.perf_counter() - began) * 1000))"
        times = [int(subprocess.run([python, "-c", took], capture_output=True, text=True, check=True).stdout) for _ in range(5)]
        return sorted(times)[2]


def try_installed(python: pathlib.Path) -> int:
    """Runs what users run first with the wheel that is installed in an environment, and a directory for a bucket."""
    with tempfile.TemporaryDirectory() as directory:
        fill(pathlib.Path(directory))
        return 0 if works(python, directory, pathlib.Path(directory), {}) else 1


def fill(objects: pathlib.Path) -> None:
    """Makes a directory with what the example reads, and an object of some blocks."""
    objects.mkdir(parents=True, exist_ok=True)
    (objects / "labels.txt").write_text("read through the cache\n")
    (objects / "weights").write_bytes(random.randbytes(9_000_017))


def works(python: pathlib.Path, origin: str, objects: pathlib.Path, variables: dict[str, str]) -> bool:
    """Whether the program and the package beside an interpreter do what they should, where an origin has the objects of a directory."""
    variables = os.environ | variables
    subprocess.run([python.with_name("forebay"), "version"], check=True)
    # The lines of README.md, as they stand there but for the origin.
    command = [python, "-P", "-c", example().replace(ORIGIN, origin)]
    said = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout
    if said != (objects / "labels.txt").read_text() + "\n":
        print(f"python: the example of the README printed {said!r}")
        return False
    subprocess.run([python, "-P", "-c", COMPARES, origin, objects / "weights"], env=variables, check=True)
    # What a program that loads models does, which does not know the package.
    library = subprocess.run([python, "-P", "-m", "forebay.streamer"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    loads = "import ctypes, sys; assert ctypes.CDLL(sys.argv[1]).runai_file_streamer_start(None) != 0"
    subprocess.run([python, "-I", "-c", loads, library], check=True)
    print(f"python: STREAMER_LIBRARY={library}")
    return True


@contextlib.contextmanager
def bucket(place: pathlib.Path) -> Iterator[dict[str, str]]:
    """An S3 server, whose buckets are the directories there. The environment of its clients."""
    parts = ["-p", "forebay-testkit", "--bin", "forebay-testkit-s3"]
    subprocess.run(["cargo", "build", "--release", "--locked", *parts], cwd=ROOT, check=True)
    command = [TARGET / "release/forebay-testkit-s3", "--dir", place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().rpartition("listening on ")[2].split()[0]
            keys = {"AWS_ACCESS_KEY_ID": "forebay-test", "AWS_SECRET_ACCESS_KEY": "forebay-test-secret"}
            yield keys | {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1"}
        finally:
            server.terminate()


def example() -> str:
    """The first block of Python in README.md."""
    return re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
