#!/usr/bin/env python3
"""The documentation site, beside mdBook: `make docs`.

    docs.py                     the preprocessor that book.toml names: a book from stdin to stdout
    docs.py supports RENDERER   mdBook's question whether it is one for RENDERER
    docs.py sources [--bless]   checks the Markdown files and their tables that are made; --bless makes those anew
    docs.py site DIRECTORY      checks the built pages
"""

import functools
import html.parser
import json
import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote

# Whoever runs this may have set PYTHONSAFEPATH.
sys.path.insert(0, str(Path(__file__).resolve().parent))

import python_api

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/forebay/forebay"

BLOCK = r"^[ \t]*(?P<fence>`{3,}|~{3,})[^\n]*\n.*?(?:^[ \t]*(?P=fence)[`~]*[ \t]*$|\Z)"
CODE = r"(?P<ticks>`+)(?!`)(?:(?!\n\s*\n).)+?(?<!`)(?P=ticks)(?!`)"
# Code, in which nothing is a link; or the target of a link.
TOKEN = re.compile(rf"{BLOCK}|{CODE}|\]\((?P<target>[^()\s]+)\)", re.MULTILINE | re.DOTALL)
PICTURE = re.compile(r"^!\[(?P<title>[^\]]*)\]\((?P<path>[^()\s]+\.svg)\)$", re.MULTILINE)


def is_elsewhere(target):
    return re.match(r"[a-z][a-z0-9+.-]*:", target) is not None


def from_root(page, target):
    """The path in the repository of what `page` links to, and the anchor."""
    path, _, anchor = target.partition("#")
    return os.path.normpath(os.path.join(os.path.dirname(page), unquote(path))) if path else page, anchor


# ---- The preprocessor


def place(page):
    """The path of a page in the book: docs/ is its root, and what lies outside of docs/ is beside it."""
    if not page.startswith("docs/"):
        return page.replace("/README.md", ".md").replace("/", "-")
    return re.sub(r"README\.md$", "index.md", page.removeprefix("docs/"))


def pages_of(items):
    for item in items:
        if isinstance(item, dict) and (chapter := item.get("Chapter")) and chapter.get("source_path"):
            yield chapter
            yield from pages_of(chapter["sub_items"])


def page_of(chapter):
    return os.path.normpath(os.path.join("docs", chapter["source_path"]))


def inlined(page, picture):
    """A picture as part of its page, so that it has the colours of the page's theme."""
    text = (ROOT / from_root(page, picture["path"])[0]).read_text()
    text = re.sub(r"<\?xml.*?\?>|<!--.*?-->|<style class=\"colours\">.*?</style>", "", text, flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if line.strip())


def in_book(page, target, pages):
    """A link of `page` as it has to be in the book."""
    if is_elsewhere(target):
        return target
    path, anchor = from_root(page, target)
    if path == page:
        return f"#{anchor}"
    anchor = f"#{anchor}" if anchor else ""
    index = f"{path}/README.md"
    if path in pages or index in pages:
        found = place(path if path in pages else index)
    elif path.startswith("docs/") and not path.endswith(".md") and (ROOT / path).is_file():
        found = path.removeprefix("docs/")
    else:
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{path}{anchor}"
    return os.path.relpath(found, os.path.dirname(place(page)) or ".") + anchor


def preprocess():
    _, book = json.load(sys.stdin)
    chapters = list(pages_of(book["items"]))
    pages = {page_of(chapter) for chapter in chapters}
    written = {str(path.relative_to(ROOT)) for path in markdown() if path.relative_to(ROOT).parts[0] == "docs"}
    missing = written - pages - {"docs/SUMMARY.md", "docs/adr/0000-template.md"}
    if missing:
        sys.exit(f"docs: docs/SUMMARY.md does not have {', '.join(sorted(missing))}")
    for chapter in chapters:
        page = page_of(chapter)
        chapter["path"] = place(page)
        text = PICTURE.sub(functools.partial(inlined, page), chapter["content"])
        chapter["content"] = TOKEN.sub(
            lambda found: f"]({in_book(page, found['target'], pages)})" if found["target"] else found[0], text
        )
    json.dump(book, sys.stdout)


# ---- The sources


@functools.cache
def markdown():
    """Every Markdown file of the repository, but for what is built and what fuzzers found."""
    found = []
    for directory, names, files in os.walk(ROOT):
        names[:] = [name for name in names if name not in ("target", "corpus", "artifacts", ".git")]
        found += [Path(directory, file) for file in files if file.endswith(".md")]
    return sorted(found)


@functools.cache
def anchors(path):
    """The anchors of a Markdown file, as GitHub makes them: `tests/tests/documents.rs` has the same rules."""
    text, found, seen = (ROOT / path).read_text(), set(), {}
    without = re.sub(BLOCK, "", text, flags=re.MULTILINE | re.DOTALL)
    for heading in re.findall(r"^#{1,6} (.*)$", without, re.MULTILINE):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading.strip()).lower()
        slug = "".join("-" if letter == " " else letter for letter in words if letter.isalnum() or letter in " -_")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        found.add(f"{slug}-{count}" if count else slug)
    return found


def broken_links():
    for file in markdown():
        page = str(file.relative_to(ROOT))
        for target in filter(None, (found["target"] for found in TOKEN.finditer(file.read_text()))):
            if is_elsewhere(target):
                continue
            path, anchor = from_root(page, target)
            if not (ROOT / path).exists():
                yield f"{page} links to {path}, which is not there"
            elif anchor and path.endswith(".md") and anchor not in anchors(path):
                yield f"{page} links to {path}#{anchor}, which has no such heading"


def rest():
    """The table of docs/REST.md, from docs/openapi.json."""
    described = json.loads((ROOT / "docs/openapi.json").read_text())

    def name_of(schema):
        return schema.get("$ref", "").rpartition("/")[2] or schema.get("type", "")

    def body_of(part):
        schema = next(iter(part.get("content", {}).values()), {}).get("schema", {})
        items = name_of(schema.get("items", {}))
        return f"`{items}` list" if items else f"`{name}`" if (name := name_of(schema)) else ""

    for tag in described["tags"]:
        yield f"### {tag['name'].capitalize()}"
        yield f"\n{tag['description']}.\n"
        yield "| request | what it does | takes | answers |"
        yield "| --- | --- | --- | --- |"
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                if tag["name"] not in operation["tags"]:
                    continue
                parameters = [f"`{each['name']}`" for each in operation.get("parameters", []) if each["in"] == "query"]
                takes = [each for each in [body_of(operation.get("requestBody", {}))] if each] + parameters
                bodies = {}
                for code, answer in operation["responses"].items():
                    bodies.setdefault(body_of(answer), []).append(code)
                answers = [f"{', '.join(codes)} {body}".strip() for body, codes in bodies.items()]
                what = ". ".join(filter(None, [operation["summary"], operation.get("description", "").rstrip(".")]))
                yield f"| `{method.upper()} {path}` | {what} | {', '.join(takes)} | {'; '.join(answers)} |"
        yield ""


def exit_codes():
    """The tables of docs/EXIT_CODES.md, from docs/CLI.md."""
    text = (ROOT / "docs/CLI.md").read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        command, _, help_text = section.partition("\n")
        codes = re.search(r"^Exit codes[^\n]*:\n((?:  .*\n)+)", help_text, re.MULTILINE)
        if codes is None:
            continue
        rows = re.findall(r"^  (\d+) +(.*)$", codes[1], re.MULTILINE)
        yield f"### {command}\n" if command != "forebay" else "### All commands\n"
        yield "| code | |"
        yield "| --- | --- |"
        yield from (f"| {code} | {what.replace('|', chr(92) + '|')} |" for code, what in rows)
        yield ""


def decisions():
    """The table of docs/adr/README.md."""
    yield "| decision | status |"
    yield "| --- | --- |"
    for file in sorted((ROOT / "docs/adr").glob("0*.md")):
        if file.name != "0000-template.md":
            text = file.read_text()
            number, title = re.match(r"# (\d+): (.*)", text).groups()
            status = re.search(r"^\* Status: (.*)$", text, re.MULTILINE)[1]
            yield f"| {number}: [{title}]({file.name}) | {status} |"
    yield ""


MADE = {
    "docs/REST.md": rest,
    "docs/EXIT_CODES.md": exit_codes,
    "docs/adr/README.md": decisions,
    "docs/python-api.md": python_api.reference,
}


def old_tables(bless):
    for page, make in MADE.items():
        text = (ROOT / page).read_text()
        table = "\n".join(make()).strip()
        new = re.sub(
            r"(<!-- made by scripts/docs\.py[^>]*-->\n).*(<!-- end -->)",
            lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text, flags=re.DOTALL,
        )
        if new != text and bless:
            (ROOT / page).write_text(new)
        elif new != text:
            yield f"{page} is old: scripts/docs.py sources --bless renews it"


# ---- The built pages


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.update(attributes[key] for key in ("id", "name") if attributes.get(key))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        elif attributes.get("src") or (tag == "link" and attributes.get("href")):
            self.loads.append(attributes.get("src") or attributes["href"])


def broken_pages(directory):
    pages = {path.resolve(): Page(path.read_text()) for path in sorted(directory.rglob("*.html"))}
    if len(pages) < 20:
        yield f"{directory} has {len(pages)} pages"
    for path, page in pages.items():
        for target in page.links + page.loads:
            name = path.relative_to(directory.resolve())
            if is_elsewhere(target) or target.startswith("//"):
                if target in page.loads:
                    yield f"{name} loads {target}"
                continue
            file, _, anchor = target.partition("#")
            aim = (path.parent / unquote(file)).resolve() if file else path
            if not aim.exists() or aim.is_dir():
                yield f"{name} links to {target}, which is not there"
            elif anchor and aim in pages and unquote(anchor) not in pages[aim].ids:
                yield f"{name} links to {target}, which has no such anchor"
    for style in directory.rglob("*.css"):
        for url in re.findall(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)", style.read_text()):
            yield f"{style.name} loads {url}"


def report(faults):
    faults = list(faults)
    for fault in faults:
        print(f"docs: {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


match sys.argv[1:]:
    case []:
        preprocess()
    case ["supports", renderer]:
        sys.exit(0 if renderer == "html" else 1)
    case ["sources", *options]:
        report([*old_tables("--bless" in options), *broken_links()])
    case ["site", directory]:
        report(broken_pages(Path(directory)))
    case _:
        sys.exit(__doc__)
