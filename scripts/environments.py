"""Where the Python package is tested and tried: virtual environments below target/python, sources of PyPI, and the package beside a native
module that cargo built."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target")
BUILT = TARGET / "python"
OLDEST = (3, 11)
#: The first releases that have wheels for free-threaded interpreters.
FREE_THREADED = {"safetensors": "safetensors==0.9.0rc1"}


def environment(name: str, requirements: list[str], interpreter: str = sys.executable) -> pathlib.Path:
    """The interpreter of a virtual environment with these requirements, made unless it is there already."""
    key = hashlib.sha256(repr((requirements, interpreter, sys.version)).encode()).hexdigest()[:12]
    place = BUILT / f"{name}-{key}"
    python = place / "bin/python"
    if (place / "complete").exists():
        return python
    shutil.rmtree(place, ignore_errors=True)
    print(f"python: making {place} with {len(requirements)} packages of PyPI", flush=True)
    subprocess.run([interpreter, "-m", "venv", place], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*pip, *requirements], check=True)
    (place / "complete").touch()
    return python


def locked(requirements: pathlib.Path) -> list[str]:
    lines = requirements.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def for_this_interpreter(requirements: list[str]) -> list[str]:
    """The same, but with other releases of some if this interpreter is free-threaded."""
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return requirements
    return [FREE_THREADED.get(requirement.partition("==")[0], requirement) for requirement in requirements]


def is_too_old() -> bool:
    """Whether this interpreter has no package, which is said."""
    if sys.version_info >= OLDEST:
        return False
    print(f"skipped: the Python package needs Python {'.'.join(map(str, OLDEST))}, and python3 is {sys.version.split()[0]}")
    return True


def installed(module: pathlib.Path, name: str) -> pathlib.Path:
    """A folder with the package as a wheel would have it, entry points included, and this native module. Who runs at the same time has
    another one."""
    site = BUILT / name
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(PACKAGE / "forebay", site / "forebay", ignore=shutil.ignore_patterns("__pycache__"))
    # Of a name that interpreters without a global lock look for, too.
    shutil.copyfile(module, site / "forebay/_native.so")
    metadata = site / "forebay-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: forebay\nVersion: 0\n")
    with (PACKAGE / "pyproject.toml").open("rb") as file:
        groups = tomllib.load(file)["project"]["entry-points"]
    points = ["\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in of_group.items())]) for group, of_group in groups.items()]
    (metadata / "entry_points.txt").write_text("\n\n".join(points) + "\n")
    return site


def source(python: pathlib.Path, requirements: pathlib.Path) -> pathlib.Path:
    """A source distribution, unpacked, of the version and with the hash that are locked there."""
    key = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    place = BUILT / f"source-{key}"
    if not (place / "complete").exists():
        shutil.rmtree(place, ignore_errors=True)
        print(f"python: fetching a source of PyPI to {place}", flush=True)
        pip = [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", ":all:"]
        pip += ["--no-build-isolation", "--require-hashes", "--dest", place, "--requirement", requirements]
        # pip asks what would build it for its name and version.
        subprocess.run(pip, env=os.environ | {"PYTHONPATH": str(requirements.parent / "unbuilt")}, check=True)
        [archive] = place.glob("*.tar.gz")
        shutil.unpack_archive(archive, place)
        (place / "complete").touch()
    [unpacked] = [path for path in place.iterdir() if path.is_dir()]
    return unpacked
