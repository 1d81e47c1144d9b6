"""The page of the Python API: public classes and functions with their signatures and docstrings.

The modules are parsed, not imported: those of Airflow and those of Spark never share an environment.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from docs.generators.markdown import page

ROOT = Path(__file__).resolve().parents[2]
_INTRO = """\
`from lakehouse import Table, Catalog, load_catalog` for programs, `lakehouse_airflow` for DAG files. Names that begin
with an underscore are not public."""
#: The sections of the page: title -> module and public names; no names means all public ones of the module.
PUBLIC: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "Tables": (
        ("lakehouse/core/table/table.py", ("Table",)),
        ("lakehouse/core/table/arguments.py", ("WriteCall",)),
        ("lakehouse/core/table/scan.py", ("TableScan",)),
        ("lakehouse/core/table/services.py", ()),
        ("lakehouse/core/operations/commit/results.py", ()),
    ),
    "Catalog": (("lakehouse/platform/catalog/catalog.py", ("load_catalog", "Catalog")),),
    "Spark": (
        ("lakehouse/spark/session.py", ("job_session",)),
        ("lakehouse/spark/frames.py", ("read", "register")),
    ),
    "Airflow": (
        ("plugins/lakehouse_airflow/dags.py", ()),
        ("plugins/lakehouse_airflow/operators.py", ()),
        ("plugins/lakehouse_airflow/stream.py", ("StreamOperator",)),
        ("plugins/lakehouse_airflow/publish.py", ()),
        ("plugins/lakehouse_airflow/publish_sensor.py", ()),
        ("plugins/lakehouse_airflow/services.py", ()),
        ("plugins/lakehouse_airflow/assets.py", ()),
        ("plugins/lakehouse_airflow/alerts.py", ()),
    ),
    "Errors": (("lakehouse/errors.py", ()),),
}
#: Base classes that are not public; their methods are shown with the class.
_BASES = {"Table": ("lakehouse/core/table/writes.py", "TableWrites")}
_SECTIONS = re.compile(r"^(Attributes|Args|Returns|Raises|Yields|Example|Examples):$", re.MULTILINE)


def python_api_page() -> str:
    """Return the page with all public names."""
    parts = [_INTRO]
    for title, modules in PUBLIC.items():
        parts.append(f"## {title}")
        for path, names in modules:
            for node in public_nodes(path, names):
                parts += _definition(node, module_name(path))
    return page("Python API", "the docstrings of the code", *parts)


def public_nodes(path: str, names: tuple[str, ...]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Yield the public definitions of a module; raise ValueError for a name that it does not have."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and _is_public(node.name)]
    missing = set(names) - {node.name for node in found}
    if missing:
        raise ValueError(f"{path} does not define {', '.join(sorted(missing))}")
    yield from (node for node in found if not names or node.name in names)


def module_name(path: str) -> str:
    """Return the module of a file: the public packages export `Table`, `Catalog` and `load_catalog`."""
    return path.removeprefix("plugins/").removesuffix(".py").replace("/", ".")


def _definition(node: ast.ClassDef | ast.FunctionDef, module: str) -> Iterator[str]:
    yield f"### {node.name}"
    signature = f"class {node.name}" if isinstance(node, ast.ClassDef) else _signature(node, node.name)
    yield f"```text\n{module}\n{signature}\n```"
    yield from _text(node)
    if not isinstance(node, ast.ClassDef):
        return
    for member in _members(node):
        if isinstance(member, ast.FunctionDef) and _is_public(member.name) and not _is_overload(member):
            yield f"#### {node.name}.{member.name}"
            yield f"```text\n{_signature(member, member.name)}\n```"
            yield from _text(member)
        elif isinstance(member, ast.FunctionDef) and member.name == "__init__" and ast.get_docstring(member):
            yield f"```text\n{_signature(member, node.name)}\n```"
            yield from _text(member)


def _members(node: ast.ClassDef) -> Iterator[ast.stmt]:
    yield from node.body
    if node.name in _BASES:
        path, name = _BASES[node.name]
        for base in public_nodes(path, (name,)):
            yield from base.body


def _signature(node: ast.FunctionDef, name: str) -> str:
    if any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
        return f"{name}: {ast.unparse(node.returns) if node.returns else 'Any'}"
    arguments = node.args
    for group in (arguments.posonlyargs, arguments.args):
        if group and group[0].arg in ("self", "cls"):
            del group[0]
    text = f"{name}({ast.unparse(arguments)})"
    if len(text) > 100:
        text = f"{name}(\n    " + ",\n    ".join(_split(ast.unparse(arguments))) + ",\n)"
    return text + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def _split(text: str) -> Iterator[str]:
    """Yield the parts of a list of arguments; commas in brackets do not separate."""
    depth, part = 0, ""
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += character
    yield part.strip()


def _text(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    docstring = inspect.cleandoc(ast.get_docstring(node) or "")
    head, *rest = _SECTIONS.split(docstring)
    yield _plain(head)
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        yield f"**{title}**"
        yield _entries(body)


def _entries(body: str) -> str:
    lines = inspect.cleandoc(body).splitlines()
    entries: list[str] = []
    for line in lines:
        if line.startswith(" ") and entries:
            entries[-1] += f" {line.strip()}"
        elif line.strip():
            entries.append(f"- {_escaped(line.strip())}")
    return "\n".join(entries)


def _plain(text: str) -> str:
    """Return prose with indented parts as code blocks, which Markdown needs to keep their lines."""
    return "\n\n".join(_paragraph(part) for part in text.strip().split("\n\n") if part.strip())


def _paragraph(part: str) -> str:
    if all(line.startswith(" ") for line in part.splitlines()):
        return f"```text\n{inspect.cleandoc(part)}\n```"
    return _escaped(part)


def _escaped(text: str) -> str:
    """Return text in which `<` and `*` outside of inline code are plain characters."""
    parts = text.split("`")
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;").replace("*", "\\*") for number, part in enumerate(parts)
    )


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _is_overload(node: ast.FunctionDef) -> bool:
    return any("overload" in ast.unparse(decorator) for decorator in node.decorator_list)
