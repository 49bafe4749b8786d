"""Settings of Sphinx for the documents' site: `make docs`."""

import importlib
import inspect
import re
from typing import Any

from docs.site import MODULES, SOURCE, as_rst

project = "messagebus"
copyright = "the messagebus project"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["requirements.txt"]

html_theme = "furo"
html_title = "messagebus"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

# `Publisher` in a docstring is a link where it is one of our public names, and code where it is not.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True

# Pages whose lists of links are the site's tables of contents.
INDEXES = ("index", "reference/api/index")
# Public name -> where its page documents it.
PUBLIC = {
    name: f"{module}.{name}"
    for module in reversed(MODULES)
    for name in importlib.import_module(module).__all__
}


def name_files_of_the_checkout(_app: Any, page: str, source: list[str]) -> None:
    """Replace links that lead out of docs: the site has no such files, a checkout has."""

    def outside(link: re.Match[str]) -> str:
        target = (SOURCE / page).parent.joinpath(link[2]).resolve()
        if target.is_relative_to(SOURCE) or not target.exists():
            return link[0]
        return f"{link[1]} (`{target.relative_to(SOURCE.parent)}` of a checkout)"

    source[0] = re.sub(r"\[([^]]*)\]\((\.\./[^)#\s]*)\)", outside, source[0])


def add_contents(_app: Any, page: str, source: list[str]) -> None:
    """Make a table of contents of each section of an index: the pages that it links, in its order."""
    if page in INDEXES:
        for section in re.split(r"^## ", source[0], flags=re.M)[1:]:
            links = re.findall(r"^- \[.*?\]\((.*?)\.md\)", section, re.M)
            heading = section.partition("\n")[0]
            lines = (":::{toctree}", ":hidden:", f":caption: {heading}", "", *links, ":::", "")
            source[0] += "\n" + "\n".join(lines)


def read_docstring(
    _app: Any, _what: str, _name: str, thing: Any, _how: Any, lines: list[str]
) -> None:
    lines[:] = [*as_rst("\n".join(lines), parameters_of(thing)).splitlines(), ""]


def parameters_of(thing: Any) -> list[str]:
    try:
        return [*inspect.signature(thing).parameters]
    except (TypeError, ValueError):  # a module, a property
        return []


def hide_private(
    _app: Any, _what: str, _name: str, _thing: Any, _how: Any, given: Any, gives: Any
) -> Any:
    """Leave out parameters with an underscore, which are for tests of our own."""
    shown = re.sub(r", _\w+: [^,()]+ = \w+(?=[,)])", "", given or "").replace(", *)", ")")
    return shown.replace("(*)", "()") or None, gives


def link_public_name(app: Any, env: Any, node: Any, shown: Any) -> Any:
    """Resolve a name that is not found where it is defined: pages document it where it is public."""
    name = node.get("reftarget", "").rpartition(".")[2]
    if node.get("refdomain") != "py" or name not in PUBLIC:
        return None
    python = env.get_domain("py")
    return python.resolve_xref(env, node["refdoc"], app.builder, "obj", PUBLIC[name], node, shown)


def setup(app: Any) -> None:
    app.connect("source-read", name_files_of_the_checkout)
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("autodoc-process-signature", hide_private)
    app.connect("missing-reference", link_public_name)
