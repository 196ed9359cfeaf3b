"""The documentation as a site: it builds strictly and offline, holds every page, and a browser finds nothing amiss."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from browser import Browser
from commands import PROJECT
from test_docs import load_script

import streamrf

DOCS = PROJECT / "docs"
EXAMPLES = [f"examples/{notebook.stem}" for notebook in sorted((DOCS / "examples").glob("*.ipynb"))]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if importlib.util.find_spec("material") is None:
        pytest.skip("mkdocs-material is not installed: pip install 'streamrf[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, env={**os.environ, **nowhere})
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there(site):
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).exists()
    home = (site / "index.html").read_text(encoding="utf-8")
    assert home.count('href="tutorial.html"') >= 1


@pytest.mark.parametrize("page", ["index", "tutorial", "cli", "api", "how-it-works", *EXAMPLES])
def test_pages_need_nothing_from_elsewhere(site, browser, page):
    seen = browser.open(site / f"{page}.html")
    assert [url for url in seen["requests"] if not url.startswith("file://")] == []
    assert [line for line in seen["complaints"] if "error" in line.lower()] == []
    assert seen["scroll"] == 0


@pytest.mark.parametrize("page", EXAMPLES)
def test_pictures_of_notebooks_suit_light_dark_and_narrow(site, browser, page):
    light, dark, narrow = (browser.open(site / f"{page}.html", **look) for look in ({}, {"dark": True}, {"width": 400}))
    assert light["pictures"] >= 2
    assert light["flat"] == narrow["flat"] == 0
    assert light["twice"] == []
    assert narrow["scroll"] == 0
    assert light["text"] != dark["text"]  # the ink of the page


def test_links_to_notebooks_lead_to_their_pages(site):
    home = (site / "index.html").read_text(encoding="utf-8")
    for page in EXAMPLES:
        assert f'href="{page}.html"' in home
        assert f'href="{page}.ipynb"' not in home
        assert (site / f"{page}.ipynb").exists()


@pytest.fixture(scope="module")
def browser():
    one = Browser()
    yield one
    one.close()


def test_the_reference_of_python_is_up_to_date():
    script = load_script("make_api_reference")
    assert (DOCS / "api.md").read_text(encoding="utf-8") == script.reference(), "run scripts/make_api_reference"


def test_the_reference_of_python_is_complete():
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == set(streamrf.__all__) - {"__version__"}


def test_the_navigation_has_every_page_once():
    listed = re.findall(r"^ +- [^:]+: (\S+\.md)$", (PROJECT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(
        [*(f"{page}.md" for page in EXAMPLES), *(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))]
    )
