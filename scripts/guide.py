#!/usr/bin/env python3
"""Makes a script of a guide, or of one section of it: what stands in its blocks for one place.

    guide.py docs/guides/packages.md packages [FROM=TO ...]
    guide.py "docs/guides/kubernetes.md#Read from a pod" kubernetes [FROM=TO ...]

Prints commands for bash. A block ```sh packages has a command a line, each of which must succeed; `# exit code 2` behind one
says how else it ends. A block ```toml packages, of any other kind too, is a file, whose name is in its first line. FROM is
replaced by TO everywhere, in this order: names of the guide stand for those of a test. Where there is no such section, or no
block for the place in it, it fails: a guide that has changed is not passed over.
"""

import re
import shlex
import sys


def blocks(page, place, section):
    """The kind and the lines of each block of a place, in a section or, without its name, in all of them."""
    kind, lines, here = None, [], not section
    for line in page.splitlines():
        fence = line.startswith("```")
        if kind is None and fence:
            kind, lines = line[3:].split(), []
        elif fence:
            if here and place in kind[1:]:
                yield kind[0], lines
            kind = None
        elif kind is not None:
            lines.append(line)
        elif line.startswith("## "):
            here = not section or line == f"## {section}"


def main():
    page, place, *names = sys.argv[1:]
    page, _, section = page.partition("#")
    with open(page, encoding="utf-8") as file:
        text = file.read()
    # Names of sections stay what they are.
    found = [(kind, "\n".join(lines)) for kind, lines in blocks(text, place, section)]
    if not any(kind == "sh" for kind, _ in found):
        sys.exit(f"guide.py: {page} has no commands for {place}" + (f' in "{section}"' if section else ""))
    print("set -uo pipefail")
    for kind, content in found:
        for name in names:
            content = content.replace(*name.split("=", 1))
        lines = content.splitlines()
        if kind != "sh":
            name = lines[0].removeprefix("# ")
            content += "\n"
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
