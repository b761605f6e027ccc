"""The wheel: the native module, and the program beside it as packages have it."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

from environments import PACKAGE, ROOT, TARGET, environment

#: As in `build-system` of python/pyproject.toml.
MATURIN = re.search(r'"(maturin==[^"]+)"', (PACKAGE / "pyproject.toml").read_text())[1]
WHEELS = TARGET / "wheels"
#: What adds to the profile `release` for packages, and what builds with it.
PROFILE, DIST = ROOT / "scripts/dist.toml", ROOT / "scripts/dist.sh"
#: In the guide, around what the last wheel was like.
GUIDE, MEASURED = ROOT / "docs/python.md", re.compile(r"(<!-- wheel: begin -->\n).*?(<!-- wheel: end -->)", re.DOTALL)
#: Milliseconds that an import may take: the aim.
AIM = 150


def wheel(interpreter: str, is_quick: bool) -> int:
    """Builds the wheel, and reads a file with it in an environment that has nothing else."""
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
    sizes = f"{mebibytes(built)} MiB, of which the program is {mebibytes(program)} MiB before it is compressed"
    print(f"python: {built}, {sizes}")
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
        subprocess.run([place / "venv/bin/forebay", "version"], check=True)
        with bucket(place / "s3", "my-bucket/datasets/labels.txt", "read through the cache\n") as variables:
            # The lines of README.md, as they stand there.
            command = [python, "-c", example()]
            said = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True).stdout
        if said != "read through the cache\n\n":
            print(f"python: the example of the README printed {said!r}")
            return None
        # What a program that loads models does, which does not know the package.
        library = subprocess.run([python, "-m", "forebay.streamer"], capture_output=True, text=True, check=True).stdout.strip()
        loads = "import ctypes, sys; assert ctypes.CDLL(sys.argv[1]).runai_file_streamer_start(None) != 0"
        subprocess.run([python, "-I", "-c", loads, library], check=True)
        print(f"python: STREAMER_LIBRARY={library}")
        took = "import time; began = time.perf_counter(); import forebay; print(round((time.perf_counter() - began) * 1000))"
        times = [int(subprocess.run([python, "-c", took], capture_output=True, text=True, check=True).stdout) for _ in range(5)]
        return sorted(times)[2]


@contextlib.contextmanager
def bucket(place: pathlib.Path, name: str, text: str) -> Iterator[dict[str, str]]:
    """An S3 server with one object. The environment of its clients."""
    parts = ["-p", "forebay-testkit", "--bin", "forebay-testkit-s3"]
    subprocess.run(["cargo", "build", "--release", "--locked", *parts], cwd=ROOT, check=True)
    (place / name).parent.mkdir(parents=True)
    (place / name).write_text(text)
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
