#!/usr/bin/env python3
"""The Python package: its tests, and its wheel.

    python.py test MODULE [ARGUMENT...]     runs python/tests with the native module that cargo built at MODULE
    python.py programs MODULE [NAME...]     runs other projects on `forebay://`: python/tests/programs. With FOREBAY_BLESS=1, what ran is
                                            written down there, and in the table of docs/python.md
    python.py s3-clients PROGRAM [NAME...]  runs other projects' S3 clients on `forebay s3`, with the `forebay` and the `forebay-testkit-s3`
                                            that cargo built beside each other: python/tests/s3_clients. FOREBAY_BLESS=1 is as above, for
                                            the table of docs/S3.md
    python.py on-mount PROGRAM [NAME...]    runs other projects' loaders of models on a mount by the `forebay` that cargo built, and beside
                                            it from tmpfs: python/tests/on_mount. FOREBAY_BLESS=1 is as above, for the table of
                                            docs/models.md. PROGRAM_MODEL=BYTES is the size of the model
    python.py safetensors MODULE [--torch]  runs safetensors' own tests, which are in its source alone, with `forebay.safetensors` in the place
                                            of what opens files: those with NumPy, and with `--torch` (5 GB) all: python/tests/safetensors_suite
    python.py table [--check]               writes these tables from what is written down, or says whether they are so
    python.py bench-faults [ARGUMENT...]    measures a cold model that is mapped and touched in any order: python/benchmarks/faults.py
    python.py bench-models [ARGUMENT...]    measures models beside safetensors' and Run:ai's loading of them: python/benchmarks/models.py
    python.py bench [ARGUMENT...]           measures reads, beside Rust's and tmpfs: python/benchmarks/reads.py
    python.py bench-fsspec [ARGUMENT...]    measures `forebay://` beside s3fs and obstore: python/benchmarks/fsspec_reads.py. With `--torch`
                                            by PyTorch's `DataLoader`, for which 5 GB are installed; so it is with bench-prefetch
    python.py bench-s3 [ARGUMENT...]        measures GETs of `forebay s3` beside its origin's: python/benchmarks/s3_gets.py
    python.py bench-prefetch [ARGUMENT...]  measures cold random reads whose order is announced, and is not: python/benchmarks/prefetch.py
    python.py wheel [--interpreter PATH]    builds target/wheels/forebay-….whl with the program of packages, and tries it in a fresh
                                            environment; with `--quick`, as `make build` builds it, with `--untried`, no more than builds
                                            it. FOREBAY_BLESS=1 writes its size, and how long an import takes, into docs/python.md
    python.py maturin                       installs what builds the wheel, or says why that cannot be had, and fails
    python.py try PYTHON                    tries the wheel that is installed beside this interpreter, with a directory for a bucket

They make virtual environments below target/python from locked requirements. Where PyPI cannot be reached tests and programs are skipped,
with the reason; the wheel cannot be built then.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Callable

# Tests run this with PYTHONSAFEPATH.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from environments import PACKAGE, ROOT, TARGET, environment, for_this_interpreter, installed, is_too_old, locked, source
from wheels import builder, try_installed, wheel

#: In a guide, around the table of what ran.
TABLE = re.compile(r"(<!-- ran: begin -->\n).*?(<!-- ran: end -->)", re.DOTALL)
#: Run:ai's streamer before its C interface changed. Its present one is in python/tests/requirements.txt.
EARLIER_STREAMER = "runai-model-streamer==0.15.9"


@dataclasses.dataclass(frozen=True)
class Suite:
    """Programs that use other projects, each in an environment of its own, and the guide with the table of what ran."""

    directory: pathlib.Path
    guide: pathlib.Path
    #: The modules that they share.
    shared: tuple[str, ...]

    @property
    def ran(self) -> pathlib.Path:
        """What ran, each with its version, as of the last FOREBAY_BLESS=1."""
        return self.directory / "ran.json"

    def requirements(self, program: pathlib.Path) -> list[str] | None:
        """A program's, or those of all whose names begin with the same word. Without any, an interpreter is all that it needs."""
        word = f"{program.stem.split('_')[0]}.txt"
        places = (program.with_suffix(".txt"), self.directory / word, PACKAGE / "tests/programs" / word)
        return next((locked(place) for place in places if place.exists()), None)

    def programs(self, names: list[str]) -> list[pathlib.Path]:
        """Those with these names, or all."""
        found = [program for program in sorted(self.directory.glob("*.py")) if program.stem not in self.shared]
        if unknown := set(names) - {program.stem for program in found}:
            sys.exit(f"python: there is no {', '.join(sorted(unknown))} in {self.directory}")
        return [program for program in found if not names or program.stem in names]


ON_FSSPEC = Suite(PACKAGE / "tests/programs", ROOT / "docs/python.md", ("common", "streamers"))
ON_S3 = Suite(PACKAGE / "tests/s3_clients", ROOT / "docs/S3.md", ("commands", "endpoint", "given_buckets", "suite"))
ON_MOUNT = Suite(PACKAGE / "tests/on_mount", ROOT / "docs/models.md", ("mounted", "streaming"))
SUITES = (ON_FSSPEC, ON_S3, ON_MOUNT)
SAFETENSORS = PACKAGE / "tests/safetensors_suite"
#: Of safetensors' own tests, those with NumPy, some of which need PyTorch, too; and those of PyTorch alone.
WITH_NUMPY, WITH_PYTORCH = ("simple", "handle", "multithreaded", "threadable", "pread_backend"), ("pt_comparison", "pt_model")
#: How long one of them may take: each has a shorter deadline of its own where it waits for others.
PROGRAM_WITHIN_SECONDS = 600


def named(program: pathlib.Path, requirements: list[str]) -> str:
    """What an environment is called: as its program, or for all that have PyTorch in them, of which there is to be one."""
    return "torch" if any(line.startswith("torch==") for line in requirements) else program.stem


def test(module: pathlib.Path, arguments: list[str]) -> int:
    if is_too_old():
        return print_counts(0, 0)
    try:
        python = environment("test", for_this_interpreter(locked(PACKAGE / "tests/requirements.txt")))
        earlier = environment("streamer", [EARLIER_STREAMER])
    except subprocess.CalledProcessError as error:
        print(f"skipped: what the Python tests need cannot be installed from PyPI: {error}")
        return print_counts(0, 0)
    site = installed(module, "site")
    with tempfile.NamedTemporaryFile(suffix=".xml") as results:
        # The package beside the tests has no native module: neither Python nor pytest is to find it before the one that has.
        command = [python, "-P", "-m", "pytest", "--import-mode=append", "-q", "-p", "no:cacheprovider"]
        command += [f"--junitxml={results.name}", *arguments]
        variables = os.environ | {"PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1"}
        # Nor are programs that the tests start.
        variables |= {"PYTHONSAFEPATH": "1"}
        # Of the same build, beside it.
        program = module.resolve().parent / "forebay"
        variables |= {"PYTHON_TESTS_PROGRAM": str(program)} if program.exists() else {}
        streamer = program.with_name("libforebay_streamer.so")
        variables |= {"PYTHON_TESTS_STREAMER": str(streamer)} if streamer.exists() else {}
        [variables["PYTHON_TESTS_EARLIER_STREAMER"]] = map(str, earlier.parent.parent.glob("lib/python*/site-packages"))
        status = subprocess.run(command, cwd=PACKAGE, env=variables).returncode
        return max(tell(results.name), status)


def run_programs(suite: Suite, names: list[str], variables: dict[str, str]) -> int:
    """Runs those with these names, or all, one after the other: each may take all of the machine."""
    if is_too_old():
        return print_counts(0, 0)
    records, failed = {}, 0
    for program in suite.programs(names):
        requirements = suite.requirements(program)
        try:
            python = pathlib.Path(sys.executable) if requirements is None else environment(named(program, requirements), requirements)
        except subprocess.CalledProcessError as error:
            print(f"skipped: {program.stem}: its wheels cannot be installed from PyPI: {error}")
            continue
        status, record = ran(python, program, variables)
        if status != 0:
            failed += 1
            print(f"test {suite.directory.name}::{program.stem} ... FAILED")
        elif record is not None:
            records[record["name"]] = record
    if os.environ.get("FOREBAY_BLESS") == "1":
        known = {record["name"]: record for record in json.loads(suite.ran.read_text())} | records
        suite.ran.write_text(json.dumps([known[name] for name in sorted(known)], indent=2, ensure_ascii=False) + "\n")
        table(check=False)
    return print_counts(len(records), failed)


def programs(module: pathlib.Path, names: list[str]) -> int:
    site = installed(module, "site-programs")
    return run_programs(ON_FSSPEC, names, {"PYTHONPATH": f"{site}{os.pathsep}{ON_FSSPEC.directory}"})


def s3_clients(program: pathlib.Path, names: list[str]) -> int:
    # What these share with the others is there.
    shared = os.pathsep.join(str(suite.directory) for suite in (ON_S3, ON_FSSPEC))
    return run_programs(ON_S3, names, {"PYTHONPATH": shared, "PROGRAM_FOREBAY": str(program.resolve())})


def on_mount(program: pathlib.Path, names: list[str]) -> int:
    shared = os.pathsep.join(str(suite.directory) for suite in (ON_MOUNT, ON_FSSPEC))
    return run_programs(ON_MOUNT, names, {"PYTHONPATH": shared, "PROGRAM_FOREBAY": str(program.resolve())})


def ran(python: pathlib.Path, program: pathlib.Path, variables: dict[str, str]) -> tuple[int, dict[str, str] | None]:
    """A program's exit status, and what it says that it did. One that says nothing has said why it was skipped."""
    with tempfile.TemporaryDirectory() as directory:
        record = pathlib.Path(directory) / "ran.json"
        # Settings of whoever runs this are not theirs.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        variables = inherited | variables | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONFAULTHANDLER": "1", "PROGRAM_RAN": str(record)}
        variables |= {"PROGRAM_BLESS": os.environ.get("FOREBAY_BLESS", "0")}
        # Its interpreter's programs first: those of its packages.
        variables |= {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        try:
            status = subprocess.run([python, "-P", program], cwd=directory, env=variables, timeout=PROGRAM_WITHIN_SECONDS).returncode
        except subprocess.TimeoutExpired:
            print(f"{program.stem} took more than {PROGRAM_WITHIN_SECONDS} seconds")
            return 1, None
        return status, json.loads(record.read_text()) if status == 0 and record.exists() else None


def safetensors(module: pathlib.Path, with_pytorch: bool) -> int:
    """Runs safetensors' own tests where `forebay.safetensors` opens the files, and says what was left out, and why."""
    if is_too_old():
        return print_counts(0, 0)
    try:
        python = environment("safetensors", locked(SAFETENSORS / "requirements.txt"))
        tests = source(python, SAFETENSORS / "source.txt") / "bindings/python/tests"
        [packages] = python.parent.parent.glob("lib/python*/site-packages")
        interpreter = with_torch() if with_pytorch else python
    except subprocess.CalledProcessError as error:
        print(f"skipped: what safetensors' own tests need cannot be had from PyPI: {error}")
        return print_counts(0, 0)
    site = installed(module, "site-safetensors")
    with tempfile.TemporaryDirectory() as directory:
        place = pathlib.Path(directory)
        shutil.copytree(tests, place / "tests")
        names = [*WITH_NUMPY, *(WITH_PYTORCH if with_pytorch else ())]
        command = [interpreter, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "instead", "-W", "ignore"]
        command += [place / "tests" / f"test_{name}.py" for name in names]
        # pytest is in the former's packages, whichever interpreter it is.
        variables = {"PYTHONPATH": os.pathsep.join(map(str, (site, SAFETENSORS, packages))), "PYTHONDONTWRITEBYTECODE": "1"}
        variables |= {"SAFETENSORS_FOUND": str(place / "found.json"), "PYTHONFAULTHANDLER": "1"}
        status = subprocess.run(command, cwd=place, env=os.environ | variables, timeout=PROGRAM_WITHIN_SECONDS).returncode
        written = place / "found.json"
        found = json.loads(written.read_text()) if written.exists() else {}
    return max(tell_safetensors(found), status)


def tell_safetensors(found: dict[str, dict[str, object]]) -> int:
    """Says what came of them. That nothing was opened by Forebay is a failure, too."""
    by_outcome = {outcome: [name for name in found if found[name]["outcome"] == outcome] for outcome in ("passed", "failed", "skipped")}
    for reason in sorted({str(found[name]["reason"]) for name in by_outcome["skipped"]}):
        names = [name.rpartition("::")[2] for name in by_outcome["skipped"] if found[name]["reason"] == reason]
        print(f"skipped: {len(names)} of safetensors' own tests: {reason}: {', '.join(names)}")
    for name in by_outcome["failed"]:
        print(f"test safetensors::{name} ... FAILED")
    opened = [name for name in by_outcome["passed"] if found[name]["opened"]]
    print(f"python: {len(opened)} of the {len(by_outcome['passed'])} tests of safetensors that passed opened files by Forebay")
    return print_counts(len(by_outcome["passed"]), len(by_outcome["failed"]) + int(not opened))


def table(check: bool) -> int:
    """The tables of the guides, from what is written down."""
    wrong = [suite.guide.relative_to(ROOT) for suite in SUITES if not table_of(suite, check)]
    for guide in wrong:
        print(f"{guide} does not say what ran: run `scripts/python.py table`")
    return int(bool(wrong))


def table_of(suite: Suite, check: bool) -> bool:
    """Writes a table, or says whether it is as it should be."""
    rows = [f"| {record['name']} | {record['version']} | {record['does']} |\n" for record in json.loads(suite.ran.read_text())]
    head = "| project | version | what ran |\n| --- | --- | --- |\n"
    new = head + "".join(rows) if rows else "Nothing was run yet.\n"
    guide = suite.guide.read_text()
    written = TABLE.sub(lambda found: found[1] + new + found[2], guide)
    if check:
        return written == guide
    if written != guide:
        suite.guide.write_text(written)
    return True


def bench(arguments: list[str]) -> int:
    parts = ["-p", "forebay-python", "-p", "forebay-session", "--lib", "--example", "reads"]
    subprocess.run(["cargo", "build", "--release", "--locked", *parts], cwd=ROOT, check=True)
    site = installed(TARGET / "release/lib_native.so", "site-release")
    command = [sys.executable, PACKAGE / "benchmarks/reads.py", "--rust", TARGET / "release/examples/reads", *arguments]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": str(site)}).returncode


def bench_faults(arguments: list[str]) -> int:
    return measure(pathlib.Path(sys.executable), "faults.py", [*release_programs(), *arguments])


def bench_fsspec(arguments: list[str]) -> int:
    python = with_torch() if "--torch" in arguments else environment("bench-fsspec", locked(PACKAGE / "benchmarks/fsspec_reads.txt"))
    return measure(python, "fsspec_reads.py", [*release_programs(), *arguments], release_site())


def bench_s3(arguments: list[str]) -> int:
    python = environment("bench-s3", locked(PACKAGE / "benchmarks/s3_gets.txt"))
    return measure(python, "s3_gets.py", [*release_programs(), *arguments])


def bench_prefetch(arguments: list[str]) -> int:
    python = with_torch() if "--torch" in arguments else pathlib.Path(sys.executable)
    return measure(python, "prefetch.py", [*release_programs(), *arguments], release_site())


def bench_models(arguments: list[str]) -> int:
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "forebay-streamer"], cwd=ROOT, check=True)
    streamer = ["--streamer", TARGET / "release/libforebay_streamer.so"]
    python = environment("bench-models", locked(PACKAGE / "benchmarks/models.txt"))
    return measure(python, "models.py", [*release_programs(), *streamer, *arguments], release_site())


def with_torch() -> pathlib.Path:
    """The environment of the programs with PyTorch, which has what the benchmarks need, too."""
    return environment("torch", locked(ON_FSSPEC.directory / "torch.txt"))


def release_site() -> pathlib.Path:
    """The package with a native module that is optimised."""
    subprocess.run(["cargo", "build", "--release", "--locked", "-p", "forebay-python", "--lib"], cwd=ROOT, check=True)
    return installed(TARGET / "release/lib_native.so", "site-release")


def release_programs() -> list[object]:
    """The arguments that name them, once they are built."""
    parts = ["-p", "forebay", "-p", "forebay-testkit", "--bin", "forebay", "--bin", "forebay-testkit-s3"]
    subprocess.run(["cargo", "build", "--release", "--locked", *parts], cwd=ROOT, check=True)
    return ["--server", TARGET / "release/forebay-testkit-s3", "--program", TARGET / "release/forebay"]


def measure(python: pathlib.Path, script: str, arguments: list[object], site: pathlib.Path | None = None) -> int:
    """Runs one of the benchmarks that share python/benchmarks/scene.py; with the package, where it is given."""
    places = [*([site] if site else []), PACKAGE / "benchmarks", ON_FSSPEC.directory]
    command = [python, "-P", PACKAGE / "benchmarks" / script, *arguments]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}).returncode


def tell(results: str) -> int:
    """Says of pytest's results what scripts/test.py wants to know."""
    try:
        cases = xml.etree.ElementTree.parse(results).findall(".//testcase")
    except xml.etree.ElementTree.ParseError:
        return 1
    failed = 0
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
            print(f"test {case.get('classname')}::{case.get('name')} ... FAILED")
        elif (skipped := case.find("skipped")) is not None:
            print(f"skipped: {skipped.get('message')}")
    skips = len([case for case in cases if case.find("skipped") is not None])
    return print_counts(len(cases) - failed - skips, failed)


def print_counts(passed: int, failed: int) -> int:
    print(f"{passed} passed; {failed} failed")
    return int(failed > 0)


BENCHMARKS: dict[str, Callable[[list[str]], int]] = {
    "bench": bench,
    "bench-faults": bench_faults,
    "bench-fsspec": bench_fsspec,
    "bench-models": bench_models,
    "bench-prefetch": bench_prefetch,
    "bench-s3": bench_s3,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    if measures := BENCHMARKS.get(next(iter(sys.argv[1:]), "")):
        # All that follows is the benchmark's: argparse would look for its options here.
        return measures(sys.argv[2:])
    tests = commands.add_parser("test", help="run the tests of the package")
    tests.add_argument("module", type=pathlib.Path, help="the native module, as cargo built it")
    tests.add_argument("arguments", nargs=argparse.REMAINDER, help="for pytest")
    others = commands.add_parser("programs", help="run other projects on forebay://")
    others.add_argument("module", type=pathlib.Path, help="the native module, as cargo built it")
    others.add_argument("names", nargs="*", help="of programs; all, if none is given")
    clients = commands.add_parser("s3-clients", help="run other projects' S3 clients on forebay s3")
    clients.add_argument("program", type=pathlib.Path, help="forebay, as cargo built it, beside forebay-testkit-s3")
    clients.add_argument("names", nargs="*", help="of programs; all, if none is given")
    loaders = commands.add_parser("on-mount", help="run other projects' loaders of models on a mount")
    loaders.add_argument("program", type=pathlib.Path, help="forebay, as cargo built it")
    loaders.add_argument("names", nargs="*", help="of programs; all, if none is given")
    own = commands.add_parser("safetensors", help="run safetensors' own tests")
    own.add_argument("module", type=pathlib.Path, help="the native module, as cargo built it")
    own.add_argument("--torch", action="store_true", help="those of PyTorch, too")
    tables = commands.add_parser("table", help="write the tables of what ran")
    tables.add_argument("--check", action="store_true", help="only say whether it is as it should be")
    for command in BENCHMARKS:
        commands.add_parser(command, help="one of the benchmarks, with arguments of its own: see above")
    wheels = commands.add_parser("wheel", help="build the wheel, and try it")
    wheels.add_argument("--interpreter", default=sys.executable, help="a free-threaded one has a wheel of its own")
    wheels.add_argument("--quick", action="store_true", help="without link-time optimisation, in half the time, beside what `make build` builds")
    wheels.add_argument("--untried", action="store_true", help="only build it")
    commands.add_parser("maturin", help="install what builds the wheel")
    trial = commands.add_parser("try", help="try a wheel that is installed")
    trial.add_argument("python", type=pathlib.Path, help="the interpreter of its environment")
    options = parser.parse_args()
    if options.command == "test":
        return test(options.module, options.arguments)
    if options.command == "programs":
        return programs(options.module, options.names)
    if options.command == "s3-clients":
        return s3_clients(options.program, options.names)
    if options.command == "on-mount":
        return on_mount(options.program, options.names)
    if options.command == "safetensors":
        return safetensors(options.module, options.torch)
    if options.command == "table":
        return table(options.check)
    if options.command == "maturin":
        return builder()
    if options.command == "try":
        return try_installed(options.python)
    return wheel(options.interpreter, options.quick, not options.untried)


if __name__ == "__main__":
    sys.exit(main())
