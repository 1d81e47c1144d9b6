"""Configuration of the documentation's site. `make docs` builds it into docs/_build; a warning is an error."""

import sys
from pathlib import Path

_DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(_DOCS.parent))

project = "lakehouse"
author = "The lakehouse authors"
copyright = "The lakehouse authors, Apache-2.0"

extensions = ["myst_parser", "sphinx_copybutton", "docs.site.toctrees", "docs.site.repository_pages"]
root_doc = "index"
exclude_patterns = ["_build", "site", "generators"]
nitpicky = True

# Headings define the same anchors as on GitHub, so links with anchors work in both.
myst_heading_anchors = 4
myst_enable_extensions = ["strikethrough"]
# External links are checked by `make docs-links` only, because tests and builds use no network.
linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_workers = 4

html_theme = "furo"
html_title = "lakehouse"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
# Readers copy commands, not prompts and not the output of commands.
copybutton_prompt_text = r"\$ |>>> "
copybutton_prompt_is_regexp = True
