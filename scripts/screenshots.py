#!/usr/bin/env python3
"""Takes the screenshots of the documentation: docs/images/. Needs a release build, fio and Chromium; see `--help`.

A directory is mounted with `forebay up` and read, cold and warm, while `forebay stats` watches, as text that becomes an SVG, and the web
page is photographed. A quick `forebay bench posix` of the mount and of the directory makes the report. All of it is removed in the end.
"""

import argparse
import html
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SHARDS, SHARD = 12, 64 << 20
WIDTH = 132


def run(*command, **more):
    return subprocess.run([str(part) for part in command], check=True, text=True, **more)


def read(paths):
    """Reads files past the page cache."""
    for path in paths:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M", "iflag=direct"], stderr=subprocess.DEVNULL)


def photograph(url, name, height):
    """A page as it is a few seconds after it was opened, light."""
    with tempfile.TemporaryDirectory() as profile:
        run(
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
            f"--window-size=1200,{height}", "--virtual-time-budget=8000", f"--screenshot={IMAGES / name}", url,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )


def drawn(text):
    """Text of a terminal as an SVG, with what is bold and faint; it follows the reader's colours."""
    lines = []
    for at, line in enumerate(text):
        parts, style = [], ""
        for piece in re.split(r"(\x1b\[[0-9;]*m)", line):
            if piece.startswith("\x1b["):
                style = {"\x1b[1m": "bold", "\x1b[2m": "faint"}.get(piece, "")
            elif piece:
                of = f' class="{style}"' if style else ""
                parts.append(f"<tspan{of}>{html.escape(piece)}</tspan>")
        lines.append(f'<text x="12" y="{24 + 18 * at}" xml:space="preserve">{"".join(parts)}</text>')
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text]
    width, height = 24 + int(7.83 * max(map(len, plain))), 16 + 18 * len(text)
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="forebay stats">
<style>
  rect {{ fill: #f6f8fa; stroke: #d0d7de; }}
  text {{ font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328; }}
  .bold {{ font-weight: bold; }}
  .faint {{ opacity: .55; }}
  @media (prefers-color-scheme: dark) {{ rect {{ fill: #161b22; stroke: #30363d; }} text {{ fill: #e6edf3; }} }}
</style>
<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6"/>
{chr(10).join(lines)}
</svg>
"""


def watched(forebay, mount, seconds):
    """What `forebay stats` shows in so many seconds."""
    command = f"stty cols {WIDTH} rows 40; exec timeout {seconds} {forebay} stats {mount}"
    shown = subprocess.run(["script", "-qec", command, "/dev/null"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL).stdout
    lines = shown.decode(errors="replace").replace("\r", "").split("\n")
    return [line for line in lines if line.strip()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forebay", type=pathlib.Path, default=ROOT / "target/release/forebay")
    forebay = parser.parse_args().forebay.resolve()
    IMAGES.mkdir(exist_ok=True)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="forebay-screenshots-", dir="/var/tmp"))
    mount, data = scratch / "mnt", scratch / "datasets"
    (data / "train").mkdir(parents=True)
    mount.mkdir()
    for shard in range(SHARDS):
        (data / "train" / f"shard-{shard:03}.tar").write_bytes(os.urandom(SHARD))
    up = run(forebay, "up", data, mount, "--memory", "2GiB", "--web", "--json", stdout=subprocess.PIPE)
    try:
        summary = json.loads(up.stdout)
        coordinator, page = summary["coordinator"], summary["page"]
        shards = sorted((mount / "train").iterdir())
        done = threading.Event()

        def keep_reading():
            read(shards)
            time.sleep(1)
            while not done.is_set():
                read(shards[:4])
                time.sleep(0.4)

        reader = threading.Thread(target=keep_reading)
        lines = []
        watcher = threading.Thread(target=lambda: lines.extend(watched(forebay, mount, 11)))
        watcher.start()
        time.sleep(2)
        reader.start()
        watcher.join()
        run(forebay, "job", "load", "--path", "/train", "--submit", "--watch", "--coordinator", coordinator, stdout=subprocess.DEVNULL)
        (IMAGES / "stats.svg").write_text(drawn(lines))
        # Its plots have a point for each five seconds.
        time.sleep(45)
        photograph(page, "web.png", 1000)
        done.set()
        reader.join()
        results = scratch / "results"
        run(
            forebay, "bench", "posix", mount, "--against", data, "--yes", "--output", results, "--plan", "quick", "--size", "256MiB",
            "--numjobs", "1,2,4", "--runtime", "2s", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        photograph(f"file://{results}/report.html", "report.png", 1400)
    finally:
        subprocess.run([forebay, "umount", mount])
        shutil.rmtree(scratch, ignore_errors=True)


main()
