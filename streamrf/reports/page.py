"""The page of a report: one HTML file with nothing outside it, in light and in dark; and the look of its pictures.

Ink and grid of a picture are placeholders, which the page replaces by its own colours.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING
from warnings import catch_warnings, filterwarnings

import numpy as np

from streamrf.reports.plots import load_matplotlib, new_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT = "#010203", "#040506"  # stand for the page's text and grid colours
COLOURS = ("#3b82c4", "#d9772b", "#2f9e6e", "#b65fa5", "#b8932f", "#4fb3bf", "#d1495b", "#8a8f98",
           "#9d7bd8")  # fmt: skip
WIDE, HALF = (8.6, 3.4), (4.6, 3.4)


@dataclass
class Picture:
    """A figure, its name in files, its caption, and a text for readers who cannot see it."""

    name: str
    caption: str
    figure: Figure
    alt: str

    def svg(self) -> str:
        """Inline markup with identifiers of its own, in the colours of the page."""
        out = io.StringIO()
        with load_matplotlib().rc_context({"svg.hashsalt": self.name, "svg.fonttype": "none"}), catch_warnings():
            filterwarnings("ignore", "Glyph")  # letters that its own fonts lack: the browser has others
            self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        text = out.getvalue()
        return themed(with_own_ids(text[text.index("<svg") :], self.name), self.alt)

    def alone(self) -> Figure:
        """The figure in colours of its own, for a white page."""
        for artist in self.figure.findobj():
            _repaint(artist)
        return self.figure

    def png(self) -> bytes:
        """The same on white."""
        out = io.BytesIO()
        self.alone().savefig(out, format="png", dpi=150, facecolor="white")
        return out.getvalue()


@dataclass
class Section:
    """A heading, a text, pictures, a table of names and values, and a grid whose first line has the names of columns.
    A section without pictures and table is left out."""

    name: str
    title: str
    text: str = ""
    pictures: list[Picture] = field(default_factory=list)
    table: list[tuple[str, str]] = field(default_factory=list)
    grid: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not (self.pictures or self.table)

    def add(self, name: str, caption: str, figure: Figure, alt: str) -> None:
        self.pictures.append(Picture(name, caption, figure, alt))


# -- pictures


def with_own_ids(svg: str, name: str) -> str:
    """Prefix identifiers with the picture's name, as several pictures share one page."""
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    return re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)


def themed(svg: str, alt: str) -> str:
    """Use the page's own colours, and add a title for screen readers."""
    svg = svg.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1" role="img">', svg, count=1, flags=re.DOTALL)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace('role="img">', f'role="img"><title>{escape(alt, quote=False)}</title>', 1)


def _repaint(artist: Artist) -> None:
    """Replace the placeholders by black and grey, for a picture that stands alone."""
    from matplotlib.colors import to_hex

    for name in ("color", "edgecolor"):
        get, put = getattr(artist, f"get_{name}", None), getattr(artist, f"set_{name}", None)
        colour = get() if get and put else None
        if isinstance(colour, tuple) and len(colour) == 4:
            colour = to_hex(colour)
        if put and isinstance(colour, str) and colour in (INK, FAINT):
            put("#222222" if colour == INK else "#dddddd")


def panels(size: tuple[float, float], count: int) -> tuple[Figure, list[Axes]]:
    """A figure with some axes side by side, in the look of the report."""
    made = new_figure(size)
    found = list(np.atleast_1d(made.subplots(1, count)))
    for axes in found:
        axes.set_facecolor("none")
        axes.grid(color=FAINT, linewidth=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(colors=INK, which="both", labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color(INK)
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set_color(INK)
            label.set_fontsize(9)
    return made, found


def panel(x: str, y: str, size: tuple[float, float] = HALF) -> tuple[Figure, Axes]:
    """A figure with one pair of labelled axes."""
    made, (axes,) = panels(size, 1)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return made, axes


def curve(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, labels: tuple[str, str],
          *, dots: bool = True, chosen: float = 0.0) -> tuple[Figure, Axes]:  # fmt: skip
    """One line, with dots at its points, and a mark at the ``chosen`` x if that is positive."""
    made, axes = panel(*labels)
    axes.plot(x, y, marker="o" if dots else None, markersize=4, color=COLOURS[0])
    if chosen > 0:
        mark(axes, chosen, "chosen")
    return made, axes


def mark(axes: Axes, x: float, text: str) -> None:
    """A dashed line at x, with a word at its top."""
    axes.axvline(x, color=INK, linestyle="--", linewidth=1)
    axes.annotate(
        text, (x, 1), xycoords=("data", "axes fraction"), xytext=(3, -2), textcoords="offset points", va="top",
        fontsize=8, color=INK,
    )  # fmt: skip


def diagonal(axes: Axes, low: float = 0.0, high: float = 1.0) -> None:
    axes.plot([low, high], [low, high], color=INK, linewidth=1, linestyle="--")


def bars(names: Sequence[str], values: np.ndarray, what: str, *, spread: np.ndarray | None = None) -> Figure:
    """A bar for each name, the first at the top."""
    made, axes = panel(what, "", (HALF[0], 0.9 + 0.26 * len(names)))
    places = np.arange(len(names))[::-1]
    axes.barh(places, values, xerr=spread, color=COLOURS[0], ecolor=INK, height=0.7)
    axes.set_yticks(places, [name[:28] for name in names])
    return made


def legend(axes: Axes, loc: str = "best", anchor: tuple[float, float] | None = None) -> None:
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc=loc, bbox_to_anchor=anchor)


# -- HTML

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
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(24rem, 100%), 1fr)); gap: 1rem;
  align-items: start; margin-bottom: 1rem; }
figure { margin: 0; min-width: 0; background: var(--card); border-radius: .5rem; padding: .6rem; }
figure.wide { grid-column: 1 / -1; }
figure svg { display: block; width: 100%; height: auto; color: var(--ink); }
figure svg text { font-family: inherit !important; }
figcaption { color: var(--soft); font-size: .85rem; padding: .3rem .2rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--faint);
  overflow-wrap: anywhere; }
th { font-weight: 500; color: var(--soft); white-space: nowrap; width: 1%; }
@media (max-width: 40rem) {
  figure.wide svg { min-width: 38rem; }
  figure.wide figcaption::after { content: " Scroll sideways for the rest of the picture."; }
  figure .scroll { background: /* a shade at the end that has more; it goes with the card when there is no more */
    linear-gradient(90deg, var(--card) 50%, transparent) left / 1.5rem 100% no-repeat local,
    linear-gradient(270deg, var(--card) 50%, transparent) right / 1.5rem 100% no-repeat local,
    linear-gradient(90deg, var(--soft), transparent) left / .6rem 100% no-repeat scroll,
    linear-gradient(270deg, var(--soft), transparent) right / .6rem 100% no-repeat scroll; } }
@media (max-width: 40rem) { th { white-space: normal; width: 50%; } td { min-width: 6rem; } }
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
    tables = _table(section.table) + _grid(section.grid)
    return f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{text}{shown}{tables}</section>\n'


def _figure(picture: Picture) -> str:
    wide = ' class="wide"' if picture.figure.get_figwidth() > 6 else ""
    svg = f'<div class="scroll" tabindex="0">{picture.svg()}</div>' if wide else picture.svg()
    return f"<figure{wide}>{svg}<figcaption>{escape(picture.caption)}</figcaption></figure>"


def _table(rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    lines = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f'<div class="scroll"><table>{lines}</table></div>'


def _grid(lines: Sequence[tuple[str, ...]]) -> str:
    if not lines:
        return ""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in lines[0])
    rows = (f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines[1:])
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
