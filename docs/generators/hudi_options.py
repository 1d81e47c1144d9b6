"""The page of the options of Hudi jobs."""

from __future__ import annotations

from docs.generators.markdown import page
from lakehouse.spec.options.hudi.catalogue import HudiOption, Support, catalogue

_INTRO = """\
The names of the configuration classes of Apache Hudi 1.2 and 0.15, and what happens if the options of a
[job that writes or reads a DataFrame](../how-to/move-a-hudi-job.md) contain them. Names are compared without regard to
case. A name in no list is an error that names the nearest one.

- **honoured**: the option has its effect. [Options](options.md) describes those with a default.
- **not needed**: nothing here depends on it. It is accepted, and one log line lists it.
- **equivalent**: another setting has its effect. It is accepted, and the log line names that setting.
- **refused**: rows or files would differ from what the job expects, so the job ends with an error. The values in the
  last column are accepted, because they are what is done anyway."""
_TITLES = {
    Support.HONOURED: "Honoured",
    Support.NOT_NEEDED: "Not needed",
    Support.EQUIVALENT: "Equivalent",
    Support.REFUSED: "Refused",
}


def hudi_options_page() -> str:
    """Return the page with all options of Hudi, by what happens to them."""
    return page("Options of Hudi jobs", "lakehouse/spec/options/hudi/options.csv", _INTRO, "\n\n".join(_sections()))


def _sections() -> list[str]:
    return [f"## {title}\n\n{_table(support)}" for support, title in _TITLES.items()]


def _table(support: Support) -> str:
    options = [option for option in catalogue().values() if option.support is support]
    if support is Support.HONOURED:
        return "\n".join(("| option | releases |", "| --- | --- |", *map(_short, options)))
    heads = ("| option | releases | reason or equivalent | accepted values |", "| --- | --- | --- | --- |")
    return "\n".join((*heads, *map(_row, options)))


def _short(option: HudiOption) -> str:
    return f"| `{option.name}` | {_releases(option)} |"


def _row(option: HudiOption) -> str:
    values = ", ".join(f"`{value}`" for value in option.values) or "–"
    return f"| `{option.name}` | {_releases(option)} | {option.text} | {values} |"


def _releases(option: HudiOption) -> str:
    return ", ".join(reversed(option.releases))
