"""A hook of MkDocs: every notebook of the documentation becomes a page, with the outputs that are kept in it.

Pictures take the ink and paper of the page, so they suit light and dark.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

PICTURE = "width:100%;height:auto;fill:currentColor"  # text is black unless it is told otherwise
DOWNLOAD = "\n\n[Download this notebook]({name}){{ download }}\n"


def on_files(files: Files, config: Any) -> Files:
    """Add a page for each notebook, which stays beside it to be downloaded."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = page(json.loads(file.content_string), file.name)
        files.append(File.generated(config, _page_name(file.src_uri), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Lead links to notebooks to their pages. In the repository they lead to the notebooks."""
    if not page.file.generated_by:
        markdown = re.sub(r"(\]\([^)\s:]+)\.ipynb\)", r"\1.md)", markdown)
    return markdown


def _page_name(notebook: str) -> str:
    return str(PurePosixPath(notebook).with_suffix(".md"))


def page(notebook: dict[str, Any], name: str) -> str:
    """The notebook as Markdown."""
    parts = [part for place, cell in enumerate(notebook["cells"]) for part in _cell(cell, f"{name}-{place}")]
    return "\n\n".join(parts) + DOWNLOAD.format(name=f"{name}.ipynb")


def _cell(cell: dict[str, Any], name: str) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    alt = cell["metadata"].get("alt", "")
    return [_fenced("python", source), *(_output(output, name, alt) for output in cell["outputs"])]


def _output(output: dict[str, Any], name: str, alt: str) -> str:
    """A picture, HTML or text, the richest that there is."""
    data = {kind: "".join(lines) for kind, lines in output.get("data", {}).items()}
    if "image/svg+xml" in data:
        return _figure(data["image/svg+xml"], name, alt)
    if "text/html" in data:
        return _plain_table(data["text/html"])
    return _fenced("text", data.get("text/plain") or "".join(output["text"]))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.strip()}\n```"


def _plain_table(html: str) -> str:
    """Without looks of its own: the site has one for tables."""
    html = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
    html = re.sub(r""" (?:class|border|style)=(?:"[^"]*"|'[^']*')""", "", html)
    return _one_line(f"<div>{html}</div>")


def _figure(svg: str, name: str, alt: str) -> str:
    """A picture with names of its own, as several share a page, and with a title for screen readers."""
    svg = svg[svg.index("<svg") :]
    for reference in ('id="', "url(#", 'href="#'):
        svg = svg.replace(reference, f"{reference}{name}-")
    svg = svg.replace("#000000", "currentColor").replace("#ffffff", "transparent")
    head = rf'<svg viewBox="\2" style="{PICTURE};max-width:\1" role="img"><title>{escape(alt, quote=False)}</title>'
    svg = re.sub(r'<svg [^>]*?width="([^"]+)"[^>]*?viewBox="([^"]+)"[^>]*>', head, svg, count=1)
    return _one_line(f'<figure style="width:100%">{svg}</figure>')


def _one_line(html: str) -> str:
    """A blank line would end a block of HTML in Markdown."""
    return re.sub(r"\s*\n\s*", " ", html)
