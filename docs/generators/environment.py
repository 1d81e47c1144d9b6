"""The page of environment variables."""

from __future__ import annotations

from docs.generators.markdown import code, page, table
from lakehouse.spec.environment import ENVIRONMENT

_INTRO = """\
The variables of the product, and those of other projects that it reads. A variable that Airflow reads is set for the
scheduler, the DAG processor, the triggerer and the workers; jobs inherit the environment of their worker. Variables of
docker compose are in `.env`. Any `${NAME}` in a location, a path or a secret option names a variable of your own."""


def environment_page() -> str:
    """Return the page with all environment variables."""
    rows = [(code(variable.name), variable.reader, variable.default or "–", variable.text) for variable in ENVIRONMENT]
    return page(
        "Environment variables",
        "lakehouse/spec/environment.py",
        _INTRO,
        table(("variable", "read by", "default", "meaning"), rows),
    )
