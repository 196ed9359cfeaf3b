"""What mkdocs asks while it builds the site: the navigation, and links that leave the folder of the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(([^)#]+\.md)\)")
OUTSIDE = {"](../README.md)": "](index.md)"}


def on_config(config: Any) -> Any:
    """The navigation is what docs/index.md lists, under its headings."""
    config.nav = navigation((Path(config.docs_dir) / "index.md").read_text(encoding="utf-8"))
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    for link, instead in OUTSIDE.items():
        markdown = markdown.replace(link, instead)
    return markdown


def navigation(index: str) -> list[Any]:
    """Pages by section; those before the first heading stand alone."""
    head, *sections = re.split(r"^## ", index, flags=re.MULTILINE)
    alone: list[Any] = [{"Contents": "index.md"}, *_pages(head)]
    return alone + [{section.splitlines()[0]: _pages(section)} for section in sections]


def _pages(text: str) -> list[dict[str, str]]:
    return [{title: page} for title, page in LINK.findall(text) if not page.startswith("..")]
