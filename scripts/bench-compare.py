#!/usr/bin/env python3
"""Measures two builds in turn with forebay-bench, and prints what the second is of the first in each case.

    bench-compare.py BEFORE AFTER [--rounds N] -- --only mount --only transport --time 1s

BEFORE and AFTER are directories with `forebay`, `forebay-testkit-s3` and `forebay-bench`, such as target/release of two checkouts
that were built with `cargo build --release --bin forebay --bin forebay-testkit-s3 --bin forebay-bench`. What follows `--` goes to
both. Each round runs one after the other, with one measurement that counts of each number; every second round begins with AFTER. A
ratio is the median of the rounds' own ratios, of cases that both have. Each run waits for the machine to come to rest, five
minutes at most.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import sys
import tempfile

#: Below this, in every round, a case has become slower: what the same program differs by from one start to the next.
SLOWER = 0.95


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path, metavar="BEFORE")
    parser.add_argument("after", type=pathlib.Path, metavar="AFTER")
    parser.add_argument("--rounds", type=int, default=3, help="how often both are measured [3]")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all reports to it")
    parser.epilog = "What follows `--` are options of forebay-bench."
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    arguments = parser.parse_args(own)
    builds = {"before": arguments.before, "after": arguments.after}
    for directory in builds.values():
        if not (directory / "forebay-bench").is_file():
            parser.error(f"{directory} has no forebay-bench: build it there with `cargo build --release --bin forebay-bench`")
    reports = {name: [] for name in builds}
    rounds = max(arguments.rounds, 1)
    for number in range(rounds):
        for name in sorted(builds, reverse=number % 2 == 0):
            print(f"==> round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            reports[name].append(measured(builds[name], options))
    if arguments.json:
        arguments.json.write_text(json.dumps(reports))
    print(compared(reports))
    return 0


def measured(directory, options):
    """The report of one run."""
    with tempfile.TemporaryDirectory(prefix="bench-compare.") as scratch:
        report = pathlib.Path(scratch) / "report.json"
        command = [(directory / "forebay-bench").resolve(), "--repeat", "1", "--json", report, *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.loads(report.read_text())


def compared(reports):
    """The table, what was busy, and what became slower."""
    before, after = ([cases_of(report) for report in reports[name]] for name in ("before", "after"))
    common = [case for case in before[0] if all(case in run for run in [*before, *after])]
    rows, slower = [], []
    for case in common:
        pairs = list(zip((run[case] for run in before), (run[case] for run in after)))
        rates = ratios(pairs, "rate")
        if rates and max(rates) < SLOWER:
            slower.append(f"{case[0]}, {case[1]}")
        speeds = [middle(run[case]["rate"] for run in runs) for runs in (before, after)]
        shown = ["—" if speed is None else f"{speed / 1e9:.2f}" for speed in speeds]
        rows.append([case[0], case[1], *shown, *(spread(ratios(pairs, figure)) for figure in ("rate", "p50", "p99", "cpu"))])
    header = ["section", "case", "before GB/s", "after GB/s", "rate", "p50", "p99", "CPU s/GiB"]
    lines = [f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *rows]]
    lines += ["", "After, of before: the median of the rounds' ratios, and the least and the most of them."]
    busy = sorted({report["not_judged"] for runs in reports.values() for report in runs if report.get("not_judged")})
    lines += [f"Not at rest: {reason}" for reason in busy]
    lines.append(f"Slower in every round: {'; '.join(slower) or 'nothing'}.")
    return "\n".join(lines)


def cases_of(report):
    """The sample of each case, by section and name."""
    return {
        (section, outcome["name"]): outcome["samples"][-1]
        for section, outcomes in report["samples"]
        for outcome in outcomes
        if outcome["samples"]
    }


def ratios(pairs, figure):
    found = [(before.get(figure), after.get(figure)) for before, after in pairs]
    return [after / before for before, after in found if before and after and math.isfinite(after / before)]


def middle(values):
    values = [value for value in values if value is not None]
    return statistics.median(values) if values else None


def spread(values):
    if not values:
        return "—"
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    sys.exit(main())
