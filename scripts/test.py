#!/usr/bin/env python3
"""Runs the test programs of the workspace, several at once.

`cargo test` runs one program after the other, and half of the time its tests wait: for a mount, a lease, a process that is to
end. Here `--jobs` programs run beside each other, each as cargo runs it (its package's directory, its own threads), those first
that take longest, and then the other end-to-end tests. With `--all` the tests of RDMA over real verbs run in a virtual machine at the
same time, and a cluster is simulated for ten hours. Where the machine's processor is emulated, few of its steps run then, and each of
the others says so. With FOREBAY_TEST_LONG=1 all of them do, and the end-to-end tests of faults run in each mode of security, too.
Nothing is run a second time to be green. A program that hangs is ended, and named with what it had not finished.
`--times` finds a test that fails once in a hundred runs before somebody else does, and `--loops` one that fails on a busy machine.

The tests of the Python package are one of these programs: scripts/python.py runs them with the native module of this build, and
safetensors' own with it. With FOREBAY_TEST_LONG=1 other projects run on it, too (python/tests/programs), others' S3 clients on
`forebay s3` (python/tests/s3_clients), and others' loaders of models on a mount (python/tests/on_mount).

Prints a line for each program, and all that it said if it failed; then what failed, the reasons of skipped tests (they print
`skipped: …`; ignored ones have theirs from libtest), and the counts last.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

FEATURES = ["--workspace", "--all-features"]
# How libtest ends, and how the virtual machine does.
RESULT = re.compile(r"^(?:test result: \w+\. )?(\d+) passed[;,] (\d+) failed", re.M)
# The end-to-end tests of what goes wrong, and the modes that they run in besides none (tests/src/security.rs).
FAULTS = {
    "cache_groups",
    "cluster",
    "cluster_etcd",
    "cluster_members",
    "coordinator",
    "disk",
    "faults",
    "lifecycle",
    "outage",
    "policies",
    "rdma",
    "window",
    "writing",
    "writing_failures",
    "writing_seed",
}
MODES = ["key", "auth", "mtls"]
# What other tests start as a process of their own is no test that was left out.
NO_TEST = "a process of other tests"
# Where `make setup` puts a UCX whose connections over sockets are sound, if the system's are not.
CACHE = os.environ.get("FOREBAY_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "forebay"
)
UCX = os.path.join(CACHE, "ucx/libucx/lib/libucp.so.0")
# The tests that have ended, and those that libtest knows to be slow. What is skipped says so in the middle of such a line.
ENDED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (?:ok|FAILED|ignored)", re.M)
FAILED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. FAILED", re.M)
SLOW = re.compile(r"^test (\S+) has been running for over", re.M)
SKIPPED = re.compile(r"(?<!\w)skipped: (.*)")
IGNORED = re.compile(r"^test \S+ \.\.\. ignored, (.*)$", re.M)


@dataclasses.dataclass
class Program:
    """A program that tests, and where it runs."""

    name: str
    command: list[str]
    directory: pathlib.Path
    package: str = ""
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def rank(self) -> tuple:
        """The longest first, then end-to-end tests, tests of whole crates, and unit tests last."""
        is_long = self.name in LONGEST
        return (not is_long, self.package not in ("forebay-e2e", "forebay-python"), "::" not in self.name, self.name)


@dataclasses.dataclass
class Outcome:
    """What became of one."""

    program: Program
    seconds: float
    status: int
    output: str
    hung: bool

    def counts(self) -> tuple[int, int]:
        found = RESULT.findall(self.output)
        if self.program.name.startswith(f"{SIMULATION},"):
            return (int(not self.failed), int(self.failed))
        # The last one is the program's; others are of programs that it ran. One that was ended, or died, has none of its own, and one
        # that cannot run here has said why.
        if not found or self.hung or self.status not in (0, 1, 101):
            return (0, int(self.failed))
        return (int(found[-1][0]), int(found[-1][1]))

    @property
    def failed(self) -> bool:
        return self.status != 0 or self.hung

    def reasons(self) -> list[str]:
        ignored = IGNORED.findall(self.output)
        return SKIPPED.findall(self.output) + [reason for reason in ignored if reason != NO_TEST]


# A step of the virtual machine, and what it took.
STEP = re.compile(r"^ok .* \(\d+ s\)$", re.M)

LONG = os.environ.get("FOREBAY_TEST_LONG") == "1"
ROOT = pathlib.Path(__file__).resolve().parent.parent
MACHINE = Program("virtual machine", ["scripts/rdma-test.sh"] if LONG else ["scripts/rdma-test.sh", "--brief"], ROOT)
# A cluster in virtual time with a seed that nobody has tried, and that it names. As the tests built it: a minute.
SIMULATION, SIMULATED = "forebay-simulate-faults", ["--hours", "10"]
# What would run alone at the end if it did not begin first.
LONGEST = {f"{SIMULATION}, 10 h"}
# The native module of the Python package, whose tests are in Python.
MODULE = "_native"
# Of the few crates that have some.
EXAMPLES = Program("examples in documentation", ["cargo", "test", "--quiet", *FEATURES, "--doc"], ROOT)


def build(everything: bool) -> list[Program]:
    """Builds all that tests need, in one command: the programs that end-to-end tests start have the same features."""
    command = ["cargo", "build", *FEATURES, "--lib", "--bins", "--examples", "--tests"]
    command += ["--message-format=json-render-diagnostics"]
    built = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(built.returncode)
    programs = [EXAMPLES]
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message["reason"] != "compiler-artifact":
            continue
        if message["target"]["name"] == MODULE:
            [module] = [file for file in message["filenames"] if file.endswith(".so")]
            programs.append(Program("python", ["scripts/python.py", "test", module], ROOT, "forebay-python"))
            # All of them where PyTorch is installed for other programs, too.
            own = ["scripts/python.py", "safetensors", module, *["--torch"] * LONG]
            programs.append(Program("safetensors' own tests", own, ROOT, "forebay-python"))
            if LONG:
                others = ["scripts/python.py", "programs", module]
                programs.append(Program("programs on forebay://", others, ROOT, "forebay-python"))
        if not message.get("executable"):
            continue
        is_test = message["profile"]["test"]
        if LONG and not is_test and (message["target"]["name"], message["target"]["kind"]) == ("forebay", ["bin"]):
            clients = ["scripts/python.py", "s3-clients", message["executable"]]
            programs.append(Program("clients of forebay s3", clients, ROOT, "forebay-python"))
            loaders = ["scripts/python.py", "on-mount", message["executable"]]
            programs.append(Program("loaders of models on a mount", loaders, ROOT, "forebay-python"))
        if not is_test:
            if everything and message["target"]["name"] == SIMULATION:
                programs.append(Program(f"{SIMULATION}, 10 h", [message["executable"], *SIMULATED], ROOT))
            continue
        directory = pathlib.Path(message["manifest_path"]).parent
        # `path+file:///…/forebay-e2e#0.1.0`, or `…/tests#forebay-e2e@0.1.0` where the directory has another name.
        place, _, version = message["package_id"].partition("#")
        package = version.split("@")[0] if "@" in version else place.rsplit("/", 1)[-1]
        target = message["target"]
        name = f"{package}::{target['name']}" if target["kind"][0] == "test" else package
        programs.append(Program(name, [message["executable"]], directory, package))
    return sorted(programs, key=lambda program: program.rank)


def in_modes(programs: list[Program]) -> list[Program]:
    """Those of faults, in each mode of security. Bounds on time are tight, and runs long, without a mode only."""
    faults = [program for program in programs if program.name.removeprefix("forebay-e2e::") in FAULTS]
    return [
        dataclasses.replace(
            program,
            name=f"{program.name}, security={mode}",
            environment={"FOREBAY_TEST_SECURITY": mode, "FOREBAY_TEST_LONG": "0"},
        )
        for mode in MODES
        for program in faults
    ]


def run(program: Program, arguments: list[str], within: float) -> Outcome:
    """Runs one, in a process group of its own so that all of it can be ended."""
    began, hung = time.monotonic(), False
    environment = dict(os.environ) | program.environment
    # Where a test failed says enough, and the traces of panics on purpose would bury it.
    environment.setdefault("RUST_BACKTRACE", "0")
    if os.path.exists(UCX):
        environment.setdefault("FOREBAY_UCX_LIBRARY", UCX)
    with tempfile.TemporaryFile(mode="w+", errors="replace") as said:
        process = subprocess.Popen(
            [*program.command, *arguments],
            cwd=program.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with LOCK:
            RUNNING.add(process.pid)
        try:
            process.wait(within)
        except subprocess.TimeoutExpired:
            hung = True
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            with LOCK:
                RUNNING.discard(process.pid)
        said.seek(0)
        output = said.read()
    return Outcome(program, time.monotonic() - began, process.returncode, output, hung)


# What keeps a processor busy for as long as this script runs, however that ends.
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"


@contextlib.contextmanager
def busy(loops: int):
    """Keeps processors busy meanwhile. Each loop has a session of its own: the scheduler shares time between sessions."""
    command = [sys.executable, "-c", LOOP]
    running = [subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) for _ in range(loops)]
    try:
        yield
    finally:
        for loop in running:
            loop.kill()
            loop.wait()


RUNNING: set[int] = set()
LOCK = threading.Lock()


def end_all(*_: object) -> None:
    """Ends what runs: Ctrl-C, or CI's."""
    with LOCK:
        for group in RUNNING:
            # One may have ended this very moment.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
    time.sleep(2)
    os._exit(130)


def say_of(outcome: Outcome, at: int, of: int) -> None:
    passed, failed = outcome.counts()
    words = [f"{passed} passed"] + [f"{failed} FAILED"] * bool(failed)
    words += [f"{len(outcome.reasons())} skipped"] * bool(outcome.reasons())
    if outcome.hung:
        words = ["HUNG"]
    elif outcome.status not in (0, 101):
        words = [f"ended by signal {-outcome.status}" if outcome.status < 0 else f"ended with {outcome.status}"]
    print(f"[{at:3}/{of}] {outcome.program.name:<44} {outcome.seconds:6.1f} s  {', '.join(words)}", flush=True)
    if outcome.program is MACHINE:
        print("".join(f"          {step}\n" for step in STEP.findall(outcome.output)), end="", flush=True)


def tell_failure(outcome: Outcome, within: float) -> None:
    print(f"\n==> {outcome.program.name} failed. It said:")
    print(outcome.output, end="" if outcome.output.endswith("\n") else "\n")
    if outcome.hung:
        ended, slow = set(ENDED.findall(outcome.output)), SLOW.findall(outcome.output)
        unfinished = [name for name in slow if name not in ended] or ["it says nothing of it"]
        print(f"==> it had not ended after {within:.0f} s and was killed; not finished: {', '.join(unfinished)}")
    variables = [f"{name}={value}" for name, value in outcome.program.environment.items()]
    print(f"==> alone: (cd {outcome.program.directory} && {' '.join(variables + outcome.program.command)})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=max(2, 2 * len(os.sched_getaffinity(0))), help="programs at once")
    parser.add_argument("--within", type=float, default=1500, help="seconds that one program may take")
    parser.add_argument("--only", default="", help="a regular expression for CRATE::TARGET")
    parser.add_argument("--all", action="store_true", help="and those of the virtual machine, and ten simulated hours")
    parser.add_argument("--times", type=int, default=1, help="how often each program runs")
    parser.add_argument("--loops", type=int, default=0, help="busy loops that run beside them")
    parser.add_argument("--list", action="store_true", help="name the programs, and run none")
    parser.add_argument("arguments", nargs="*", help="for each program, after `--`")
    options = parser.parse_args()

    began = time.monotonic()
    programs = build(options.all)
    took = time.monotonic() - began
    if LONG:
        programs += in_modes(programs)
    programs = [program for program in programs if re.search(options.only, program.name)]
    if options.list:
        print("\n".join(program.name for program in programs))
        return 0
    print(f"built in {took:.0f} s", flush=True)
    signal.signal(signal.SIGINT, end_all)
    signal.signal(signal.SIGTERM, end_all)
    ended = []
    # The machine takes one processor, and few of the programs do.
    with busy(options.loops), concurrent.futures.ThreadPoolExecutor(options.jobs + options.all) as pool:
        runs = [pool.submit(run, MACHINE, [], 2 * options.within)] if options.all else []
        # Each once before any of them twice: neighbours differ from time to time.
        again = programs * options.times
        runs += [pool.submit(run, program, options.arguments, options.within) for program in again]
        for done in concurrent.futures.as_completed(runs):
            ended.append(done.result())
            say_of(ended[-1], len(ended), len(runs))
            if ended[-1].failed:
                tell_failure(ended[-1], options.within)

    failures = [outcome for outcome in ended if outcome.failed]
    for outcome in failures:
        names = FAILED.findall(outcome.output)
        print(f"failed: {outcome.program.name}: {', '.join(names) or 'the program itself'}")
    reasons = [reason for outcome in ended for reason in outcome.reasons()]
    for reason in sorted(set(reasons)):
        print(f"{reasons.count(reason):7} skipped: {reason}")
    passed, failed = (sum(outcome.counts()[at] for outcome in ended) for at in (0, 1))
    print(f"{passed} passed, {failed} failed, {len(reasons)} skipped")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
