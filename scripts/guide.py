#!/usr/bin/env python3
"""Makes a script of a guide: what stands in its blocks for one place.

    guide.py docs/guides/packages.md packages [FROM=TO ...]

Prints commands for bash. A block ```sh packages has a command a line, each of which must succeed; `# exit code 2` behind one
says how else it ends. A block ```toml packages or ```ini packages is a file, whose name is in its first line. FROM is replaced
by TO everywhere: names of the guide stand for those of a test.
"""

import re
import shlex
import sys


def blocks(page, place):
    """The kind and the lines of each block of a place."""
    kind, lines = None, []
    for line in page.splitlines():
        fence = line.startswith("```")
        if kind is None and fence:
            kind, lines = line[3:].split(), []
        elif fence:
            if place in kind[1:]:
                yield kind[0], lines
            kind = None
        elif kind is not None:
            lines.append(line)


def main():
    page, place, *names = sys.argv[1:]
    with open(page, encoding="utf-8") as file:
        text = file.read()
    for name in names:
        text = text.replace(*name.split("=", 1))
    print("set -uo pipefail")
    for kind, lines in blocks(text, place):
        if kind != "sh":
            name = lines[0].removeprefix("# ")
            content = "\n".join(lines) + "\n"
            print(f"mkdir -p $(dirname {shlex.quote(name)}) && printf %s {shlex.quote(content)} > {shlex.quote(name)}")
            continue
        for line in filter(None, lines):
            command, _, remark = line.partition(" # ")
            code = re.match(r"exit code (\d+)", remark.strip())
            expected = int(code[1]) if code else 0
            print(f"echo {shlex.quote('$ ' + command.strip())}")
            print(f"bash -c {shlex.quote(command.strip())}; code=$?")
            print(f'[[ $code -eq {expected} ]] || {{ echo "exit code $code, and not {expected}" >&2; exit 1; }}')


if __name__ == "__main__":
    main()
