"""The documentation site: Sphinx with MyST; `python docs/build.py` builds it strictly and checks its links."""

import dlwrap

project = "dlwrap"
author = "the dlwrap authors"
copyright = "the dlwrap authors, Apache License 2.0"  # noqa: A001 -- Sphinx's name
version = release = dlwrap.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build"]
nitpicky = True
default_role = "py:obj"

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say more: units, and what the values mean
autodoc_class_signature = "separated"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True

# Types as the docstrings say them, and names of others that have no page here.
nitpick_ignore_regex = [("py:class", r".*"), ("py:obj", r"(numpy|cuda)\..*")]

pygments_style = "friendly"
pygments_dark_style = "github-dark"

html_theme = "furo"
html_title = f"dlwrap {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}

copybutton_exclude = ".linenos, .gp, .go"
