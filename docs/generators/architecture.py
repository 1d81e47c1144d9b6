"""The picture of docs/architecture.md: which package may import which, and which imports exist, from the code."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from docs.generators.performance import DARK, LIGHT

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "_static" / "architecture" / "imports.svg"
TITLE = "Imports between packages"
#: Packages whose own packages are shown instead of them.
_DIVIDED = ("lakehouse.platform", "lakehouse.core")
#: The entry point of `python -m lakehouse` is no package.
_HIDDEN = ("lakehouse.__main__",)
_LEFT, _TOP, _CELL, _GAP, _BOTTOM = 190, 150, 20, 10, 66
_COLORS = {
    "light": {"ground": LIGHT["ground"], "text": LIGHT["text"], "note": LIGHT["note"], "line": LIGHT["line"]}
    | {"used": LIGHT["fast"], "allowed": "#e4e9ef", "own": "#b8c2cc"},
    "dark": {"ground": DARK["ground"], "text": DARK["text"], "note": DARK["note"], "line": DARK["line"]}
    | {"used": DARK["fast"], "allowed": "#2a3138", "own": "#52606d"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packages:
    """The packages in the order of their layers, and the imports between them.

    Attributes:
        names: The dotted names, highest layer first.
        allowed: Pairs (importer, imported) that the layers allow.
        used: Pairs that the code contains.
    """

    names: tuple[str, ...]
    allowed: frozenset[tuple[str, str]]
    used: frozenset[tuple[str, str]]


def architecture_files() -> dict[Path, str]:
    """Return the generated picture by its path."""
    return {PICTURE: svg(load_packages())}


def load_packages(root: Path = ROOT) -> Packages:
    """Return the packages of a checkout: the layers in pyproject.toml, and the imports of the modules."""
    layers = layers_of(root / "pyproject.toml")
    names = [name for line in layers["lakehouse"] for name in line if name not in _HIDDEN]
    shown = tuple(part for name in names for part in _parts(name, layers))
    allowed = {(a, b) for a in shown for b in shown if _allows(layers, a, b)}
    used = {pair for pair in _imports(root, shown) if pair[0] != pair[1]}
    return Packages(names=shown, allowed=frozenset(allowed), used=frozenset(used))


def layers_of(path: Path) -> dict[str, list[list[str]]]:
    """Return the layers of each container of import-linter's contracts: lists of dotted names, highest first."""
    contracts = tomllib.loads(path.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    return {
        container: [[f"{container}.{name.strip()}" for name in line.split("|")] for line in contract["layers"]]
        for contract in contracts
        if contract["type"] == "layers"
        for container in contract["containers"]
    }


def svg(packages: Packages) -> str:
    """Return the matrix of imports, whose colors follow the color scheme of the reader."""
    places = _places(packages.names)
    side = max(places.values()) + _CELL
    width, height = _LEFT + side + 20, _TOP + side + _BOTTOM
    light, dark = (_rules(_COLORS[scheme]) for scheme in ("light", "dark"))
    described = "; ".join(
        f"{_short(name)} imports {', '.join(_short(b) for b in packages.names if (name, b) in packages.used)}"
        for name in packages.names
        if any(a == name for a, _ in packages.used)
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'font-family="Helvetica, Arial, sans-serif" font-size="13">',
            f"<title>{TITLE}</title>",
            f"<desc>{escape(described)}</desc>",
            f"<style>{light} @media (prefers-color-scheme: dark) {{ {dark} }}</style>",
            f'<rect class="ground" width="{width}" height="{height}"/>',
            f'<text class="text" x="12" y="24" font-size="15" font-weight="bold">{TITLE}</text>',
            *(line for name in packages.names for line in _labels(name, places[name])),
            *_groups(places),
            *(line for a in packages.names for b in packages.names if (line := _cell(packages, places, a, b))),
            *_legend(_TOP + side + 24),
            "</svg>\n",
        )
    )


def _parts(name: str, layers: Mapping[str, Sequence[Sequence[str]]]) -> list[str]:
    return [part for line in layers[name] for part in line] if name in _DIVIDED else [name]


def _allows(layers: Mapping[str, Sequence[Sequence[str]]], importer: str, imported: str) -> bool:
    """Return whether the layers of the innermost container of both packages allow an import."""
    container = next(c for c in (*_DIVIDED, "lakehouse") if all(n.startswith(f"{c}.") for n in (importer, imported)))
    depth = container.count(".") + 2
    first, second = (
        next(number for number, line in enumerate(layers[container]) if ".".join(name.split(".")[:depth]) in line)
        for name in (importer, imported)
    )
    return first < second


def _imports(root: Path, shown: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in sorted((root / "lakehouse").rglob("*.py")):
        importer = _package(".".join(path.relative_to(root).with_suffix("").parts), shown)
        if importer is None:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            yield from ((importer, imported) for name in names if (imported := _package(name, shown)) is not None)


def _package(name: str, shown: Sequence[str]) -> str | None:
    return next((package for package in shown if name == package or name.startswith(f"{package}.")), None)


def _places(names: Sequence[str]) -> dict[str, int]:
    """Return the distance of each row from the first, with a gap between containers."""
    places, at, container = {}, 0, ""
    for name in names:
        own = name.rpartition(".")[0]
        at += _GAP if container and own != container else 0
        places[name], container = at, own
        at += _CELL
    return places


def _labels(name: str, place: int) -> Iterator[str]:
    middle = place + _CELL // 2 + 4
    label = name.rpartition(".")[2]
    yield f'<text class="text" x="{_LEFT - 8}" y="{_TOP + middle}" text-anchor="end">{label}</text>'
    x, y = _LEFT + middle, _TOP - 8
    yield f'<text class="text" x="{x}" y="{y}" transform="rotate(-90 {x} {y})">{label}</text>'


def _groups(places: Mapping[str, int]) -> Iterator[str]:
    """Yield a bracket with a name for each divided package, at the left and at the top."""
    for package in _DIVIDED:
        inside = [place for name, place in places.items() if name.startswith(f"{package}.")]
        start, end, label = min(inside) + 2, max(inside) + _CELL - 2, package.rpartition(".")[2]
        x, y = _LEFT - 104, _TOP - 88
        yield f'<path class="line" fill="none" d="M{x + 6} {_TOP + start} H{x} V{_TOP + end} H{x + 6}"/>'
        yield f'<path class="line" fill="none" d="M{_LEFT + start} {y + 6} V{y} H{_LEFT + end} V{y + 6}"/>'
        middle = (start + end) // 2
        yield _bold(label, x - 8, _TOP + middle + 4, "end")
        yield _bold(label, _LEFT + middle, y - 8, "middle")


def _bold(label: str, x: int, y: int, anchor: str) -> str:
    return f'<text class="text" x="{x}" y="{y}" text-anchor="{anchor}" font-weight="bold">{label}</text>'


def _cell(packages: Packages, places: Mapping[str, int], importer: str, imported: str) -> str:
    pair = (importer, imported)
    kind = "own" if importer == imported else "used" if pair in packages.used else "allowed"
    if kind == "allowed" and pair not in packages.allowed:
        return ""
    x, y, size = _LEFT + places[imported] + 1, _TOP + places[importer] + 1, _CELL - 2
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{size}" height="{size}"/>'


def _legend(y: int) -> Iterator[str]:
    texts = (
        ("used", "the package in this row imports the package in this column"),
        ("allowed", "allowed, and no module does so"),
    )
    for number, (kind, text) in enumerate(texts):
        yield f'<rect class="{kind}" x="12" y="{y + 22 * number - 12}" width="14" height="14"/>'
        yield f'<text class="note" x="34" y="{y + 22 * number}">{text}</text>'


def _rules(colors: Mapping[str, str]) -> str:
    return " ".join(
        f".{name} {{ {'stroke' if name == 'line' else 'fill'}: {color} }}" for name, color in colors.items()
    )


def _short(name: str) -> str:
    return name.removeprefix("lakehouse.")
