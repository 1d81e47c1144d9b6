"""The report of the demo as one HTML page without external resources. It follows the light or dark mode of the reader.

Every text that comes from a table or from Airflow is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path

from demo.facts import ClusteringFacts, CommitFacts, DemoFacts, TableFacts
from demo.runs import DagRun
from demo.texts import clock_time, commit_text, day_time, recent, seconds_text, size_text

_STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1c2330; --soft: #5b6575; --line: #e1e5eb;
  --bar: #2f6fde; --before: #a9b4c4; --good: #1f8f5f; --bad: #c8372d; --point: #c2540a; }
@media (prefers-color-scheme: dark) { :root {
  --page: #11151c; --card: #1a202a; --text: #e6eaf0; --soft: #9aa5b5; --line: #2c3442;
  --bar: #6ea2ff; --before: #56627a; --good: #4cc38a; --bad: #ff7a70; --point: #ffb266; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1040px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { margin: 0; font-size: 26px; } h2 { margin: 0 0 4px; font-size: 18px; }
p { margin: 0 0 12px; color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 20px;
  margin-top: 20px; }
.numbers { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 20px; }
.numbers div { flex: 1 1 120px; background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 12px 16px; color: var(--soft); }
.numbers b { display: block; color: var(--text); font-size: 24px; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th, td { padding: 6px 10px 6px 0; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } .n { text-align: right; } tr:last-child td { border-bottom: 0; }
.bar { display: block; height: 10px; border-radius: 5px; background: var(--bar); min-width: 2px; }
td:has(.bar) { width: 45%; } .wide + .wide { margin-top: 18px; }
.before { background: var(--before); } code { font-size: 13px; overflow-wrap: anywhere; }
.pair { display: grid; grid-template-columns: max-content 1fr max-content; gap: 6px 12px; align-items: center; }
.pair h3 { grid-column: 1 / -1; margin: 10px 0 0; font-size: 14px; font-weight: 600; }
.success { color: var(--good); } .failed { color: var(--bad); }
svg { display: block; width: 100%; min-width: 640px; height: auto; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } svg .name { fill: var(--text); }
svg .axis { stroke: var(--line); } svg .run { fill: var(--bar); } svg .bad { fill: var(--bad); }
svg .commit { fill: var(--point); stroke: var(--card); stroke-width: 2; }
.key { display: flex; gap: 18px; color: var(--soft); font-size: 13px; } .key i { display: inline-block; width: 12px;
  height: 12px; margin-right: 6px; border-radius: 3px; vertical-align: -1px; background: var(--bar); }
.key .dot { border-radius: 50%; background: var(--point); }
"""
_WIDTH, _LEFT, _ROW, _TICKS = 1000, 170, 34, 6


def write_page(facts: DemoFacts, path: Path) -> Path:
    """Write the page and return its path."""
    path.write_text(page(facts), encoding="utf-8")
    return path


def page(facts: DemoFacts) -> str:
    """Return the page as HTML."""
    sections = [_chapters(facts), _timeline(facts), *(_table(table) for table in facts.tables), _runs(facts)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>lakehouse demo</title><style>{_STYLE}</style></head><body><main>"
        f"<header><h1>lakehouse demo</h1><p>{escape(day_time(facts.made_at))} · Airflow on {escape(facts.database)}</p>"
        f"</header>{_numbers(facts)}{''.join(sections)}</main></body></html>\n"
    )


def _numbers(facts: DemoFacts) -> str:
    runs = [run for run in facts.runs if run.state == "success"]
    numbers = (
        (f"{sum(table.rows for table in facts.tables):,}", "rows"),
        (str(len(facts.tables)), "tables"),
        (str(sum(table.files for table in facts.tables)), "files"),
        (size_text(sum(table.size for table in facts.tables)), "of Parquet"),
        (str(sum(len(table.commits) for table in facts.tables)), "commits"),
        (f"{len(runs)} of {len(facts.runs)}", "runs succeeded"),
    )
    return (
        '<div class="numbers">'
        + "".join(f"<div><b>{escape(n)}</b>{escape(text)}</div>" for n, text in numbers)
        + "</div>"
    )


def _chapters(facts: DemoFacts) -> str:
    if not facts.chapters:
        return ""
    rows = _rows(
        ("chapter", "table", "measure", "before", "after"),
        (
            tuple(map(escape, (chapter.title, chapter.table, chapter.measure, chapter.before, chapter.after)))
            for chapter in facts.chapters
        ),
        right=(3, 4),
    )
    texts = "".join(f"<li><b>{escape(chapter.title)}</b>: {escape(chapter.text)}</li>" for chapter in facts.chapters)
    return f'<section><h2>What changed</h2><div class="wide">{rows}</div><ul>{texts}</ul></section>'


def _timeline(facts: DemoFacts) -> str:
    runs = recent(facts.runs)
    if not runs:
        return ""
    first = min(run.start for run in runs if run.start is not None)
    last = max(run.end for run in runs if run.end is not None)
    whole = max((last - first).total_seconds(), 1.0)
    scale = (_WIDTH - _LEFT - 20) / whole
    names = list(dict.fromkeys(run.dag_id for run in runs))
    height = len(names) * _ROW + 34
    parts = []
    for tick in range(_TICKS):
        seconds = whole * tick / (_TICKS - 1)
        x = _LEFT + seconds * scale
        anchor = "start" if tick == 0 else "end" if tick == _TICKS - 1 else "middle"
        label = clock_time(first + timedelta(seconds=seconds))
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - 26}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="{anchor}">{label}</text>')
    for row, name in enumerate(names):
        y = row * _ROW
        parts.append(f'<text class="name" x="0" y="{y + 22}">{escape(name)}</text>')
        for run in runs:
            if run.dag_id == name and run.start is not None and run.end is not None:
                x = _LEFT + (run.start - first).total_seconds() * scale
                width = max((run.end - run.start).total_seconds() * scale, 3)
                kind = "run" if run.state == "success" else "bad"
                title = f"{run.run_type} run, {run.state}, {seconds_text(run.seconds)}"
                parts.append(
                    f'<rect class="{kind}" x="{x:.1f}" y="{y + 8}" width="{width:.1f}" height="18" rx="4">'
                    f"<title>{escape(title)}</title></rect>"
                )
        parts += [
            f'<circle class="commit" cx="{_LEFT + (commit.at - first).total_seconds() * scale:.1f}" cy="{y + 17}" '
            f'r="6"><title>{escape(_commit_title(commit))}</title></circle>'
            for commit in _commits_of(facts, name, runs)
        ]
    return (
        "<section><h2>Timeline</h2><p>Runs of Airflow's DAGs, and the commits that they made on the tables.</p>"
        '<div class="key"><span><i></i>run</span><span><i class="dot"></i>commit</span></div>'
        f'<div class="wide"><svg viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'aria-label="Runs and commits over time">{"".join(parts)}</svg></div></section>'
    )


def _commits_of(facts: DemoFacts, dag_id: str, runs: Sequence[DagRun]) -> list[CommitFacts]:
    return [
        commit
        for table in facts.tables
        for commit in table.commits
        if any(run.made(commit.table, commit.operation, commit.at) for run in runs if run.dag_id == dag_id)
    ]


def _commit_title(commit: CommitFacts) -> str:
    return f"{commit.table}: {commit.operation.lower()} {commit.instant}, {commit_text(commit)}"


def _table(table: TableFacts) -> str:
    most = max((partition.rows for partition in table.partitions), default=0) or 1
    partitions = _rows(
        ("partition", "rows", "files", "size", ""),
        (
            (
                escape(partition.name),
                f"{partition.rows:,}",
                str(partition.files),
                size_text(partition.size),
                f'<span class="bar" style="width:{100 * partition.rows / most:.1f}%"></span>',
            )
            for partition in table.partitions
        ),
        right=(1, 2, 3),
    )
    commits = _rows(
        ("commit", "completed", "operation", "inserted", "updated", "rewritten", "files", "size"),
        (
            (
                f"<code>{escape(commit.instant)}</code>",
                clock_time(commit.at),
                escape(commit.operation.lower()),
                f"{commit.inserted:,}",
                f"{commit.updated:,}",
                f"{commit.rewritten:,}",
                str(commit.files),
                size_text(commit.size),
            )
            for commit in table.commits
        ),
        right=(3, 4, 5, 6, 7),
    )
    clustering = "" if table.clustering is None else _clustering(table.clustering)
    return (
        f"<section><h2>{escape(table.name)}</h2><p>{table.rows:,} rows, {table.files} files, {size_text(table.size)} · "
        f"{escape(table.kind)}<br><code>{escape(table.location)}</code></p>"
        f'<div class="wide">{partitions}</div>{clustering}<div class="wide">{commits}</div></section>'
    )


def _clustering(facts: ClusteringFacts) -> str:
    blocks = (
        ("Files of the table", facts.files, tuple(str(count) for count in facts.files)),
        ("Size of the table", facts.size, tuple(size_text(size) for size in facts.size)),
        (
            f"To read for {facts.query}",
            facts.query_size,
            tuple(
                f"{some} of {files} files, {size_text(size)}"
                for some, files, size in zip(facts.query_files, facts.files, facts.query_size, strict=True)
            ),
        ),
    )
    lines = []
    for title, values, texts in blocks:
        lines.append(f"<h3>{escape(title)}</h3>")
        for label, style, value, text in zip(
            ("before clustering", "after"), ("bar before", "bar"), values, texts, strict=True
        ):
            width = 100 * value / (max(values) or 1)
            bar = f'<span class="{style}" style="width:{width:.1f}%"></span>'
            lines.append(f"<span>{label}</span><span>{bar}</span><span>{escape(text)}</span>")
    return f'<div class="pair">{"".join(lines)}</div><p></p>'


def _runs(facts: DemoFacts) -> str:
    table = _rows(
        ("started", "DAG", "run", "state", "duration"),
        (
            (
                "" if run.start is None else escape(day_time(run.start)),
                escape(run.dag_id),
                escape(run.run_type),
                f'<span class="{"failed" if run.state == "failed" else "success"}">{escape(run.state)}</span>',
                seconds_text(run.seconds),
            )
            for run in sorted(facts.runs, key=lambda run: (run.start or facts.made_at, run.dag_id))
        ),
        right=(4,),
    )
    return (
        "<section><h2>Runs</h2><p>The same runs, with their logs, are in Airflow's pages: <code>make ui</code>.</p>"
        f'<div class="wide">{table}</div></section>'
    )


def _rows(names: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int]) -> str:
    """Return a table; the cells are HTML."""

    def cells(tag: str, values: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if position in right else ''}>{value}</{tag}>" for position, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><tr>{cells('th', names)}</tr>{body}</table>"
