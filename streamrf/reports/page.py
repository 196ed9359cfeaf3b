"""The page: one HTML file with nothing outside it, in light and in dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from streamrf.reports.figures import Picture


@dataclass
class Section:
    """A heading, what to know, pictures and a table; a section without content is left out."""

    name: str
    title: str
    text: str = ""
    pictures: list[Picture] = field(default_factory=list)
    table: list[tuple[str, str]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.pictures or self.table)


STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --card: #f6f7f9; --ink: #1d242c; --soft: #5b6673; --faint: #dde1e6;
  --accent: #3b82c4; }
@media (prefers-color-scheme: dark) { :root { --back: #15191e; --card: #1d2329; --ink: #e3e7eb; --soft: #9aa5b1;
  --faint: #343c45; --accent: #6aa9de; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem 4rem; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; padding-top: .6rem; border-top: 1px solid var(--faint); }
p { margin: .3rem 0 .8rem; color: var(--soft); max-width: 48rem; }
nav { display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 1rem 0; font-size: .9rem; }
nav a { color: var(--accent); text-decoration: none; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .7rem; margin: 1.2rem 0; }
.tile { background: var(--card); border-radius: .5rem; padding: .6rem .8rem; min-width: 0; }
.tile b { display: block; font-size: 1.15rem; overflow-wrap: anywhere; }
.tile span { color: var(--soft); font-size: .8rem; }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start; }
figure { margin: 0; flex: 1 1 20rem; min-width: 0; max-width: 31rem; background: var(--card);
  border-radius: .5rem; padding: .6rem; }
figure.wide { flex-basis: 100%; max-width: 100%; }
figure svg { display: block; width: 100%; height: auto; color: var(--ink); }
figure svg text { font-family: inherit !important; }
figcaption { color: var(--soft); font-size: .85rem; padding: .3rem .2rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--faint);
  overflow-wrap: anywhere; }
th { font-weight: 500; color: var(--soft); white-space: nowrap; width: 1%; }
footer { margin-top: 3rem; color: var(--soft); font-size: .8rem; }
@media print { nav { display: none; } figure { break-inside: avoid; } }
"""


def page(title: str, lead: str, tiles: Sequence[tuple[str, str]], sections: Sequence[Section], footer: str) -> str:
    """The whole document."""
    links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a>' for section in sections)
    boxes = "".join(f'<div class="tile"><span>{escape(n)}</span><b>{escape(v)}</b></div>' for n, v in tiles)
    body = "".join(map(_section, sections))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body>"
        f"<h1>{escape(title)}</h1><p>{escape(lead)}</p><div class='tiles'>{boxes}</div><nav>{links}</nav>"
        f"<main>{body}</main><footer>{escape(footer)}</footer></body></html>\n"
    )


def _section(section: Section) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    pictures = "".join(map(_figure, section.pictures))
    shown = f'<div class="pictures">{pictures}</div>' if pictures else ""
    return (
        f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{text}{shown}{_table(section.table)}</section>\n'
    )


def _figure(picture: Picture) -> str:
    wide = ' class="wide"' if picture.figure.get_figwidth() > 6 else ""
    return f"<figure{wide}>{picture.svg()}<figcaption>{escape(picture.caption)}</figcaption></figure>"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    lines = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f'<div class="scroll"><table>{lines}</table></div>'
