"""How Sphinx builds this folder into site/: `make docs`."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "Encke"
author = "the authors of Encke"
copyright = author
try:
    release = metadata.version("encke")
except metadata.PackageNotFoundError:  # a source tree on the path
    release = "source"

extensions = ["sphinx.ext.autodoc", "myst_parser", "commands", "docstrings", "pages"]
myst_heading_anchors = 3
exclude_patterns = ["_extensions"]
smartquotes = False  # what is quoted is often code

autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"Encke {release}"
html_copy_source = False
html_show_sphinx = False
