"""The notebooks of the documentation run, in a Jupyter kernel, and give what is kept in them."""

import importlib.util
import re

import nbformat
import pytest
from commands import PROJECT
from test_docs import anchors, load_script

NOTEBOOKS = sorted((PROJECT / "docs" / "examples").glob("*.ipynb"))


def shown(notebook):
    """What each cell puts out: texts without their numbers and lines of progress, and kinds of the rest."""
    return [[_shown(output) for output in cell.outputs] for cell in notebook.cells if cell.cell_type == "code"]


def _shown(output):
    if output.output_type == "stream":
        return re.sub(r"[\d.,]+ ?[kMG]?B?", "#", output.text).strip()
    return sorted(output.data)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_gives_what_is_kept(path, tmp_path):
    kept = nbformat.read(path, as_version=4)
    ran = load_script("make_examples").run(path, tmp_path)
    assert shown(ran) == shown(kept), "run scripts/make_examples"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_fit_to_be_shown(path):
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        drawn = any("image/svg+xml" in output.get("data", {}) for output in cell.get("outputs", ()))
        assert bool(cell.metadata.get("alt")) == drawn, "a picture has a text for those who cannot see it"
    text = "".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        target, _, anchor = link.partition("#")
        assert (path.parent / target).exists(), link
        assert not anchor or anchor in anchors(path.parent / target), link
    everything = path.read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|Users|work)/|/tmp/", everything)


def test_a_page_is_made_of_every_kind_of_output():
    spec = importlib.util.spec_from_file_location("notebook_pages", PROJECT / "scripts" / "notebook_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    svg = '<?xml?><svg width="9" viewBox="0 0 9 9"><g id="a" style="fill: #ffffff; stroke: #000000"/>\n\n</svg>'
    outputs = [
        {"output_type": "stream", "text": ["one\n", "two\n"]},
        {"output_type": "display_data", "data": {"text/plain": "x", "text/html": "<table border='1'>\n\n</table>"}},
        {"output_type": "display_data", "data": {"image/svg+xml": svg, "text/plain": "<Figure>"}},
    ]
    code = {"cell_type": "code", "source": ["1 + 1"], "metadata": {"alt": "a < b"}, "outputs": outputs}
    made = pages.page({"cells": [{"cell_type": "markdown", "source": "# Title"}, code]}, "name")
    title, source, text, table, picture, download = made.strip().split("\n\n")
    assert (title, source, text) == ("# Title", "```python\n1 + 1\n```", "```text\none\ntwo\n```")
    assert table == "<div><table> </table></div>"
    assert "<title>a &lt; b</title>" in picture
    assert 'id="name-1-a" style="fill: transparent; stroke: currentColor"' in picture
    assert download == "[Download this notebook](name.ipynb){ download }"
