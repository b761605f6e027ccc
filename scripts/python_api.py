"""The reference of the Python package, docs/python-api.md, from its docstrings: scripts/docs.py has it made. Nothing is imported, so it
needs no native module."""

import ast
import re
import textwrap
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "python/forebay"

#: What programs use: the module that they import it from, the file that has it, and its name.
PUBLIC = [
    ("forebay", "_client.py", "Client"),
    ("forebay", "_client.py", "File"),
    ("forebay", "_entry.py", "Entry"),
    ("forebay", "_native.pyi", "View"),
    ("forebay", "_upload.py", "Upload"),
    ("forebay", "_prefetch.py", "Prefetch"),
    ("forebay", "_streamer.py", "streamer_library"),
    ("forebay.aio", "aio.py", "AsyncClient"),
    ("forebay.aio", "aio.py", "AsyncFile"),
    ("forebay.aio", "aio.py", "AsyncUpload"),
    ("forebay.aio", "aio.py", "AsyncPrefetch"),
    ("forebay.safetensors", "safetensors.py", "safe_open"),
    ("forebay.safetensors", "safetensors.py", "Slice"),
    ("forebay.safetensors", "safetensors.py", "load_file"),
    ("forebay.safetensors", "_slices.py", "SafetensorError"),
    ("forebay.torch", "torch.py", "AnnouncingSampler"),
    ("forebay.fastsafetensors", "fastsafetensors.py", "loader"),
]
#: Those that programs make by themselves: others come from a client.
CONSTRUCTED = {"Client", "AsyncClient", "safe_open", "AnnouncingSampler"}
#: For other modules of the package, or told by what a class is.
LEFT_OUT = {"forget", "end", "native", "readable", "seekable", "telling"}
WIDTH = 120


def reference():
    """The lines of it."""
    for module, file, name in PUBLIC:
        source = (PACKAGE / file).read_text()
        [found] = [node for node in ast.parse(source).body if getattr(node, "name", None) == name]
        yield f"## {module}.{name}\n"
        if isinstance(found, ast.ClassDef):
            yield from of_class(found, source.splitlines())
        else:
            yield from of_function(found, name)


def of_class(found, lines):
    members = {node.name: node for node in found.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    if found.name in CONSTRUCTED:
        yield from block(signature(members["__init__"], found.name))
    yield from text(ast.get_docstring(found))
    if fields := [node for node in found.body if isinstance(node, ast.AnnAssign) and comment(lines, node.lineno - 1)]:
        yield "| field | type | what it is |"
        yield "| --- | --- | --- |"
        for node in fields:
            kind = ast.unparse(node.annotation).replace("|", "\\|")
            yield f"| `{node.target.id}` | `{kind}` | {inline(comment(lines, node.lineno - 1))} |"
        yield ""
    for name, member in members.items():
        if not name.startswith("_") and name not in LEFT_OUT:
            yield f"### {found.name}.{name}\n"
            yield from of_function(member, name)


def of_function(found, name):
    yield from block(signature(found, name))
    yield from text(ast.get_docstring(found))


def comment(lines, at):
    """What `#:` says directly above a line."""
    said = []
    while at > 0 and (line := lines[at - 1].strip()).startswith("#: "):
        said.insert(0, line[3:])
        at -= 1
    return " ".join(said)


def signature(found, name):
    """As it is called; of a property, its type."""
    returned = ast.unparse(found.returns).replace("_native.", "") if found.returns else "None"
    decorators = {ast.unparse(decorator) for decorator in found.decorator_list}
    if "property" in decorators:
        return f"{name}: {returned}"
    arguments = parted(ast.unparse(found.args).replace("_native.", ""))
    if arguments and arguments[0] in ("self", "cls"):
        arguments = arguments[1:]
    # An asynchronous generator is iterated over, and not awaited.
    is_awaited = isinstance(found, ast.AsyncFunctionDef) and not returned.startswith("AsyncIterator")
    begin = f"{'await ' if is_awaited else ''}{name}("
    end = ")" if found.name == "__init__" else f") -> {returned}"
    whole = begin + ", ".join(arguments) + end
    if len(whole) <= WIDTH:
        return whole
    return "\n".join([begin, *(f"    {argument}," for argument in arguments), end])


def parted(arguments):
    """Each of them, with its default as people write it: commas within brackets part nothing."""
    found, depth = [""], 0
    for letter in arguments:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [argument.strip().replace("=", " = ") for argument in found if argument]


def block(code):
    yield f"```python\n{code}\n```\n"


def inline(words):
    """Markdown of what Sphinx would be told."""
    words = re.sub(r":(?:class|meth|func|mod):`~?([^`]+)`", r"`\1`", words)
    return re.sub(r"``(.+?)``", r"`\1`", words)


def filled(words, first="", rest=""):
    return textwrap.fill(
        inline(" ".join(words.split())), WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )


def text(docstring):
    """The paragraphs, examples and fields of a docstring."""
    items = []
    for part in re.split(r"\n\s*\n", docstring or ""):
        if part.startswith(">>> "):
            yield from block("\n".join(re.sub(r"^(?:>>> |\.\.\. )", "", line) for line in part.splitlines()))
        elif part.startswith(":"):
            items += re.split(r"\n(?=:)", part)
        else:
            yield f"{filled(part)}\n"
    for item in items:
        kind, named, words = re.match(r":(param|raises|return)\s*([^:]*):\s*(.*)", item, re.DOTALL).groups()
        names = ", ".join(f"`{name.strip()}`" for name in named.split(",") if name.strip())
        says = {"param": f"{names}: ", "raises": f"raises {names}: ", "return": "returns: "}[kind]
        yield filled(says + words, "* ", "  ")
    if items:
        yield ""
