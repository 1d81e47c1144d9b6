"""The public API of a package as a stub: signatures of the names in `__all__`, with their public members.

The modules are parsed, not imported, because those of Airflow and those of Spark never share an environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
PACKAGES = ("lakehouse", "lakehouse_airflow")


def public_stub(package: str) -> str:
    """Return the source of a module that declares what `package` exports, in alphabetical order."""
    loader = griffe.GriffeLoader(search_paths=[ROOT, ROOT / "plugins"])
    module = loader.load(package)
    loader.resolve_aliases(external=False, implicit=False)
    names = sorted(str(name) for name in module.exports or ())
    lines = [f"__all__ = {names!r}"]
    for name in names:
        lines += ["", *_declaration(_target(module[name]), "")]
    return "\n".join(lines) + "\n"


def breaking_changes(before: str, after: str, package: str) -> list[str]:
    """Return the changes between two stubs of a package after which a program may fail."""
    modules = [griffe.visit(package, filepath=Path(f"{package}.pyi"), code=code) for code in (before, after)]
    return [change.explain(griffe.ExplanationStyle.ONE_LINE) for change in griffe.find_breaking_changes(*modules)]


def _target(member: griffe.Object | griffe.Alias) -> griffe.Object:
    return member.final_target if isinstance(member, griffe.Alias) else member


def _declaration(member: griffe.Object, indent: str) -> Iterator[str]:
    if isinstance(member, griffe.Function):
        yield from _function(member, indent)
    elif isinstance(member, griffe.Class):
        bases = f"({', '.join(str(base).rpartition('.')[2] for base in member.bases)})" if member.bases else ""
        yield f"{indent}class {member.name}{bases}:"
        public = [_target(one) for name, one in sorted(member.all_members.items()) if _is_public(name)]
        for one in public:
            yield from _declaration(one, indent + "    ")
        if not public:
            yield f"{indent}    ..."
    elif isinstance(member, griffe.Attribute):
        property_ = "property" in member.labels
        yield f"{indent}{member.name}: {member.annotation or 'object'}{'  # property' if property_ else ''}"


def _function(function: griffe.Function, indent: str) -> Iterator[str]:
    for decorator in ("classmethod", "staticmethod"):
        if decorator in function.labels:
            yield f"{indent}@{decorator}"
    returns = f" -> {function.returns}" if function.returns else ""
    yield f"{indent}def {function.name}({', '.join(_parameters(function))}){returns}: ..."


def _parameters(function: griffe.Function) -> Iterator[str]:
    is_keyword_only = False
    for one in function.parameters:
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(one.kind, "")
        if one.kind is griffe.ParameterKind.keyword_only and not is_keyword_only:
            is_keyword_only = True
            yield "*"
        is_keyword_only = is_keyword_only or stars == "*"
        annotation = f": {one.annotation}" if one.annotation else ""
        default = f" = {one.default}" if one.default is not None and not stars else ""
        yield f"{stars}{one.name}{annotation}{default}"


def _is_public(name: str) -> bool:
    return name == "__init__" or not name.startswith("_")


if __name__ == "__main__":
    for name in PACKAGES:
        (ROOT / "tests/unit/public_api" / f"{name}.txt").write_text(public_stub(name))
