#!/usr/bin/env python3
"""Measures RDMA between Soft-RoCE devices, in the virtual machine of scripts/rdma-vm.sh, and prints tables in Markdown.

* libraries: `forebay bench rdma --provider both`, by verbs and by UCX, beside perftest, in turn: 4 KiB one at a time,
  64 KiB and 1 MiB with eight at once, and the processor time of both ends;
* one-sided: a mount that reads a worker's memory by requests and by itself, and the worker's processor time;
* striping: two pairs of devices of which one has a quarter of the other's speed; striped, not striped, and the fast pair
  alone.

There is no card in that machine, its kernel is the card, and its processor is usually emulated: ratios say something,
and times do not. perftest is this computer's, or is fetched once with apt-get (Debian's package perftest); without, its
columns are empty. `make bench-rdma` builds the program first.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SECTIONS = {"libraries": ["libraries", "perftest"], "one-sided": ["one-sided"], "striping": ["striping"]}
#: Programs of perftest, Debian's packages that have them, and the libraries that the machine does not have.
PROGRAMS = ["ib_send_lat", "ib_read_lat", "ib_write_bw", "ib_read_bw"]
PACKAGES = ["perftest", "libibumad3", "libpci3"]
LIBRARIES = ["libibumad.so.", "libpci.so."]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
#: What a 4 KiB round trip may take of perftest's.
LATENCY_TARGET = 2.0
#: What booting the machine may take, and each part in each round: a little more than rdma-guest-bench.sh gives it.
BOOT, PART = 300, 960


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    program = ROOT / "target/release/forebay"
    parser.add_argument("--program", type=pathlib.Path, default=program, help="forebay, optimised")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="this section; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="how often all is measured; medians are shown [3]")
    parser.add_argument("--quick", action="store_true", help="one short round: shows that it works, not how fast")
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIRECTORY", help="copy what the programs printed to it")
    parser.add_argument("--tables", type=pathlib.Path, metavar="DIRECTORY", help="print the tables of what was kept")
    arguments = parser.parse_args()
    if arguments.tables:
        print(report(arguments.tables))
        return 0
    if not arguments.program.is_file():
        parser.error(f"{arguments.program} is not there: run `make bench-rdma`, or name it with --program")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    sections = arguments.only or list(SECTIONS)
    rounds = 1 if arguments.quick else max(arguments.rounds, 1)
    with tempfile.TemporaryDirectory(prefix="rdma-bench.") as directory:
        status = measure(pathlib.Path(directory), arguments, sections, rounds)
    return status


def measure(directory, arguments, sections, rounds):
    programs, results = directory / "programs", directory / "results"
    programs.mkdir()
    results.mkdir()
    # A copy: whoever builds meanwhile may put another one in its place.
    shutil.copy(arguments.program, programs / "forebay")
    parts = [part for section in sections for part in SECTIONS[section]]
    if "perftest" in parts:
        missing = take_perftest(programs / "perftest")
        if missing:
            say(f"skipped: perftest: {missing}")
            parts.remove("perftest")
    environment = [f"FOREBAY={programs}/forebay", f"PERFTEST={programs}/perftest"]
    if arguments.quick:
        environment.append("QUICK=yes")
    command = [ROOT / "scripts/rdma-vm.sh", "--timeout", str(BOOT + PART * rounds * len(parts))]
    command += ["--ro", ROOT, "--ro", programs, "--rw", results, "--", "env", *environment]
    command += ["scripts/rdma-guest-bench.sh", results, str(rounds), *parts]
    machine = subprocess.Popen([str(part) for part in command], cwd=ROOT, stdout=sys.stderr)
    try:
        status = machine.wait()
    finally:
        machine.terminate()
        machine.wait()
    if status == 77:
        return 0  # It said why it skipped.
    if arguments.keep:
        shutil.copytree(results, arguments.keep, dirs_exist_ok=True)
    print(report(results))
    return status


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- perftest --------------------------------------------------------------------------------------------------------


def take_perftest(directory):
    """Puts its programs and libraries into a directory. Why not, if it cannot be had."""
    installed = shutil.which("ib_send_lat")
    if installed:
        source, problem = pathlib.Path(installed).parent, None
    else:
        source, problem = fetched_perftest()
    if problem:
        return problem
    directory.mkdir()
    for program in PROGRAMS:
        shutil.copy(source / program, directory / program)
    if installed:
        ldd = subprocess.run(["ldd", installed], capture_output=True, text=True).stdout
        needed = [words[2] for words in (line.split() for line in ldd.splitlines()) if len(words) > 2]
    else:
        needed = [str(path) for path in source.parent.glob("lib/*/*.so.*")]
    for library in needed:
        name = os.path.basename(library)
        if name.startswith(tuple(LIBRARIES)):
            shutil.copy(library, directory / name)
    return None


def fetched_perftest():
    """The directory of its programs in the cache, and why there is none."""
    base = os.environ.get("FOREBAY_CACHE") or os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = pathlib.Path(base) if os.environ.get("FOREBAY_CACHE") else pathlib.Path(base) / "forebay"
    root = cache / "rdma-vm/perftest"
    if not (root / "usr/bin/ib_send_lat").exists():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root) as packages:
            apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=", "download", *PACKAGES]
            try:
                got = subprocess.run(apt, cwd=packages, stdin=subprocess.DEVNULL, capture_output=True, text=True)
                if got.returncode:
                    last = (got.stderr.strip().splitlines() or ["no reason"])[-1]
                    what = f"apt-get cannot fetch {' '.join(PACKAGES)} ({last})"
                    return None, f"{what}; install perftest, or run `apt-get update`"
                for package in pathlib.Path(packages).glob("*.deb"):
                    subprocess.run(["dpkg-deb", "-x", package, root], check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                return None, f"{error}; install perftest"
    return root / "usr/bin", None


# ---- What was measured -----------------------------------------------------------------------------------------------


def report(results):
    """All tables of what lies in a directory."""
    rounds = [path for path in results.iterdir() if path.is_dir() and path.name.isdigit()]
    rounds.sort(key=lambda path: int(path.name))
    tables = [*libraries(rounds), *one_sided(rounds), *striping(rounds)]
    return "\n\n".join(tables) if tables else "Nothing was measured."


def libraries(rounds):
    """Verbs, UCX and perftest."""
    perftest = {name: [figures(path / name) for path in rounds] for name in names_of(rounds)}
    latency, bandwidth = documents(rounds, "latency.json"), documents(rounds, "bandwidth.json")
    tables = latencies(latency, perftest) if latency else []
    return tables + (bandwidths(bandwidth, perftest) if bandwidth else [])


def latencies(reports, perftest):
    # perftest shows half of a round trip of messages, and all of a read.
    round_trip = ("2 × `ib_send_lat`", median(perftest.get("send_lat"), 4, 2))
    read = ("`ib_read_lat`", median(perftest.get("read_lat"), 4))
    polling = ("`ib_read_lat`, polling", median(perftest.get("read_lat_polling"), 4))
    rows, judged = [], []
    for kind, (name, theirs) in [("cache", round_trip), ("read", read), ("seal", read), ("read", polling)]:
        ours = [of_kind(reports, library, "latency", kind, 4 * KIB, "p50_us") for library in ("verbs", "ucx")]
        row = [kind.upper(), *map(shown, ours), name, shown(theirs), *(ratio(value, theirs) for value in ours)]
        rows.append(row)
        if kind == "cache" and ours[0] and theirs:
            is_met = "met" if ours[0] <= LATENCY_TARGET * theirs else "missed"
            judged.append(f"CACHE by verbs, target ≤ {LATENCY_TARGET:.0f} × the round trip of `ib_send_lat`: {is_met}.")
    text = """One operation of 4 KiB after the other, medians in µs. CACHE: a request of the cache and its reply. READ: the
card's own read. SEAL: a READ with the fenced read of seals behind it, as one-sided reads have it. Both ends share one
processor and sleep while they wait, perftest too (`-e`), but where it says polling. Who asks by CACHE waits itself, for
5 ms (`client.drive.wait`): an emulated card answers later than the default."""
    header = ["4 KiB", "verbs µs", "UCX µs", "perftest", "perftest µs", "verbs/perftest", "UCX/perftest"]
    return ["\n\n".join([f"## Latency\n\n{text}", table(header, rows), *judged])]


def bandwidths(reports, perftest):
    rows, processor = [], []
    libraries = ("verbs", "ucx")
    for size, name in [(64 * KIB, "64 KiB"), (MIB, "1 MiB")]:
        for kind, program in [("write", "write_bw"), ("read", "read_bw"), ("seal", "read_bw"), ("cache", "write_bw")]:
            what = f"{kind.upper()}, {name}"
            ours = [of_kind(reports, library, "bandwidth", kind, size, "gbps") for library in libraries]
            theirs = median(perftest.get(f"{program}_{size}"), 3)
            speeds = [shown(value, 3) for value in ours]
            ratios = [ratio(value, theirs) for value in ours]
            rows.append([what, *speeds, f"`ib_{program}`", shown(theirs, 3), *ratios])
            ends = [f"{end}_cpu_seconds_per_gib" for end in ("server", "client")]
            cpu = [of_kind(reports, library, "bandwidth", kind, size, end) for library in libraries for end in ends]
            processor.append([what, *(shown(value, 3) for value in cpu)])
    speed = """Eight operations under way in one thread. A worker answers CACHE by writing into the caller's memory."""
    time = """Seconds of processor time for each GiB, of the threads of either end. The kernel is the card here: what it does
within a system call counts for who called, and the rest for nobody. Of READ and SEAL by verbs, the server's is to be 0."""
    header = ["8 at once", "verbs Gbit/s", "UCX Gbit/s", "perftest", "perftest Gbit/s", "verbs/perftest", "UCX/perftest"]
    of_time = ["8 at once", "verbs, server", "verbs, client", "UCX, server", "UCX, client"]
    return [
        f"## Bandwidth\n\n{speed}\n\n{table(header, rows)}",
        f"## Processor time\n\n{time}\n\n{table(of_time, processor)}",
    ]


def one_sided(rounds):
    """The processor of a worker whose memory is read."""
    samples = {}
    for path in rounds:
        for how, size, count, seconds, cpu in rows_of(path / "one-sided.tsv"):
            before, after = (lines(path / f"{how}-{size}-{when}.json") for when in ("before", "after"))
            alone = grown(before, after, "cards", "one_sided_reads")
            sent = grown(before, after, "listeners", "bytes_sent")
            sample = (int(count), float(seconds), float(cpu), alone, sent)
            samples.setdefault((int(size), how == "true"), []).append(sample)
    if not samples:
        return []
    rows = []
    for (size, how), found in sorted(samples.items(), reverse=True):
        name = "by itself" if how else "by requests"
        busy = middle(cpu / seconds for _, seconds, cpu, *_ in found)
        if size == 0:
            rows.append([f"nobody reads, {name}", "", "", "", "", f"{busy * 100:.2f} %"])
            continue
        speed = middle(count / seconds / MIB for count, seconds, *_ in found)
        cost = middle(cpu / count * GIB for count, _, cpu, *_ in found)
        asked = middle(sent / count for count, *_, sent in found if sent is not None)
        alone = middle(float(alone) for *_, alone, _ in found if alone is not None)
        named = f"{'1 MiB' if size == MIB else '4 KiB'}, {name}"
        rows.append([named, shown(speed), percent(asked), shown(alone, 0), shown(cost, 3), f"{busy * 100:.2f} %"])
    text = """A mount reads 4 MiB of a worker's memory by verbs again and again, past the page cache, one read at a time. By
requests: `network.rdma.data.one_sided=false`. By itself: `true`; once a second the worker is asked for each block. Its
processor time is that of all its threads, with what they do while nobody reads."""
    header = ["reads", "MiB/s", "sent by the worker", "one-sided reads", "worker, CPU s/GiB", "worker, of a processor"]
    return [f"## One-sided reads\n\n{text}\n\n{table(header, rows)}"]


def striping(rounds):
    """Two pairs, one of a quarter of the other's speed."""
    samples = {}
    for path in rounds:
        for how, pattern, count, seconds in rows_of(path / "striping.tsv"):
            before, after = (received(path / f"{how}-{pattern}-{when}.json") for when in ("before", "after"))
            cards = {card: total - before.get(card, 0) for card, total in after.items()}
            samples.setdefault((pattern, how), []).append((int(count) * 8 / float(seconds) / 1e6, cards))
    if not samples:
        return []
    rows = []
    for pattern, what in [("prefetched", "one file in order"), ("large", "one read of 4 MiB after the other")]:
        whole = speed_of(samples.get((pattern, "whole"), []))
        for how, name in [("striped", "striped"), ("whole", "`striping=off`"), ("fast-alone", "the fast pair alone")]:
            found = samples.get((pattern, how))
            if found:
                speed, (_, cards) = speed_of(found), found[-1]
                over = ", ".join(f"{card} {total / MIB:.0f}" for card, total in sorted(cards.items())) or "—"
                rows.append([what, name, shown(speed), ratio(speed, whole), over])
    text = """One reader of a file that a worker has in memory, by verbs over two pairs of devices: what the worker sends is
held to 32 Mbit/s over the first and to 8 Mbit/s over the second (`tc netem rate`), 40 together. The last column is of
the last round, in MiB."""
    header = ["read", "how", "Mbit/s", "of `striping=off`", "over each card"]
    return [f"## Striping\n\n{text}\n\n{table(header, rows)}"]


def received(path):
    """The bytes that came over each card of a mount, by its interface."""
    cards = found_in(lines(path), "cards")
    return {card["card"].split()[0]: card["bytes_received"] for card in cards if "bytes_received" in card}


# ---- Figures ---------------------------------------------------------------------------------------------------------


def speed_of(samples):
    return middle(speed for speed, _ in samples)


def documents(rounds, name):
    return [json.loads((path / name).read_text()) for path in rounds if (path / name).exists()]


def names_of(rounds):
    names = {path.name for directory in rounds for path in directory.iterdir()}
    return {name for name in names if "_lat" in name or "_bw_" in name}


def figures(path):
    """The last row of numbers that perftest printed: bytes first. Of nothing, none."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        words = line.split()
        try:
            row = [float(word) for word in words]
        except ValueError:
            continue
        if len(row) > 3:
            found = row
    return found


def of_kind(reports, library, test, kind, size, figure):
    """The median of a figure of `forebay bench rdma --json`."""
    values = []
    for report in reports:
        for result in report.get(library, {}).get(test, []):
            if result["kind"] == kind and result["bytes"] == size:
                values.append(result[figure])
    return middle(values)


def median(rows, column, factor=1):
    return middle(row[column] * factor for row in rows or [] if len(row) > column)


def middle(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def rows_of(path):
    return [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []


def lines(path):
    """What `forebay stats --all --json` printed: a document a line."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")] if path.exists() else []


def found_in(value, key):
    """All entries of the lists that are called `key`, wherever they are."""
    if isinstance(value, list):
        return [entry for inner in value for entry in found_in(inner, key)]
    if not isinstance(value, dict):
        return []
    own = value.get(key)
    own = [entry for entry in own if isinstance(entry, dict)] if isinstance(own, list) else []
    return own + [entry for name, inner in value.items() if name != key for entry in found_in(inner, key)]


def grown(before, after, key, counter):
    """By how much a counter of all of these has grown; `None` where nobody has it."""
    totals = [[entry[counter] for entry in found_in(value, key) if counter in entry] for value in (before, after)]
    return sum(totals[1]) - sum(totals[0]) if all(totals) else None


def shown(value, digits=1):
    return "—" if value is None else f"{value:.{digits}f}"


def percent(value):
    return "—" if value is None else f"{value * 100:.0f} %"


def ratio(value, other):
    return "—" if value is None or not other else f"{value / other:.2f} ×"


def table(header, rows):
    divider = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, divider, *rows])


if __name__ == "__main__":
    sys.exit(main())
