"""The documentation site: ``make docs``. It builds without a network and shows without one."""

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

import consilience

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "Consilience"
author = "The Consilience developers"
copyright = "2026, The Consilience developers"
version = release = consilience.__version__

# Pages in Markdown; the reference from docstrings, with their "Args:"; the commands from --help.
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "commands"]
exclude_patterns = ["_ext"]
myst_enable_extensions = ["deflist", "html_image"]
myst_heading_anchors = 4
highlight_language = "none"  # of indented blocks; fences name theirs

default_role = "py:obj"
autodoc_member_order = "bysource"  # what matters most comes first, not what begins with a
autodoc_typehints_format = "short"  # Consensus, not consilience.consensus.Consensus
python_maximum_signature_line_length = 80
add_module_names = False

html_theme = "furo"
html_title = f"Consilience {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False

# Beside consilience.__all__, what users import by its module.
SUBMODULES = {
    "consilience.engines.dask": ["aggregate_shards"],
    "consilience.integrations.flower": ["ConsilienceStrategy"],
    "consilience.integrations.nvflare": ["ConsilienceAggregator"],
    "consilience.lab.flower": ["AttackMod"],
    "consilience.lab.nvflare": ["AttackFilter"],
    "consilience.beliefs": ["Estimator", "Given"],
}
# Files of the repository's first folder that have a page here.
PAGES = {
    "SECURITY.md)": "security.md)",
    "CODE_OF_CONDUCT.md)": "conduct.md)",
    "../SECURITY.md": "security.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
    "../examples/flower)": "examples/flower.md)",
    "../examples/flower_adapters)": "examples/flower_adapters.md)",
    "../examples/nvflare)": "examples/nvflare.md)",
}


def links_within(*event: Any) -> None:
    """Let links to files above lead to their pages of the site; the text comes last."""
    source: list[str] = event[-1]
    for path, here in PAGES.items():
        source[0] = source[0].replace(f"]({path}", f"](/{here}")


def all_in_reference(app: Sphinx, error: Exception | None) -> None:
    """Complain of each public name that the reference lacks; ``-W`` makes it an error."""
    if error is not None:
        return
    objects = app.env.domaindata["py"]["objects"]
    wanted = [f"consilience.{name}" for name in consilience.__all__]
    wanted += [f"{module}.{name}" for module, names in SUBMODULES.items() for name in names]
    for name in sorted(set(wanted) - set(objects)):
        getLogger(__name__).warning("%s is public and not in docs/reference/api.md", name)


def setup(app: Sphinx) -> None:
    """Connect both."""
    app.connect("source-read", links_within)
    app.connect("include-read", links_within)
    app.connect("build-finished", all_in_reference)
