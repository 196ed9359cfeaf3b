"""The documentation: blocks run, every command and option is there, pages can be reached, links lead somewhere."""

import importlib.machinery
import importlib.util
import os
import re
import shlex
import subprocess

import click
import pytest
from cluster_tools import quick_to_start
from commands import PROJECT, streamrf
from documents import LANGUAGES, RUN, blocks, make_programs, make_what_is_missing, pages

from streamrf.cli import cli
from streamrf.features.fourier import KINDS, kind_of
from streamrf.support import errors
from streamrf.training.pilot import defaults
from streamrf.training.pilot import fourier as pilot

PAGES = {str(page.relative_to(PROJECT)): page for page in pages()}
SHELL_MARKS = re.compile(r"[|<>&;*$]")


# -- blocks


@pytest.mark.parametrize("name", PAGES)
def test_every_block_has_a_language_we_know(name):
    for block in blocks(PAGES[name]):
        assert block.language in LANGUAGES, f"{name}:{block.line}: ```{block.language} is none of {LANGUAGES}"
        if block.language in RUN[1:] and not block.excuse:
            assert block.commands(), f"{name}:{block.line}: no line is a command"


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if any(b.language in RUN for b in blocks(page))])
def test_blocks_run(name, tmp_path, monkeypatch, in_little_time):
    folder = tmp_path / "here"
    folder.mkdir()
    make_programs(tmp_path / "bin")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    make_light_work(monkeypatch)
    with quick_to_start():
        run_blocks(name)


def run_blocks(name):
    names = {"__name__": "__main__"}
    for block in blocks(PAGES[name]):
        where = f"{name}:{block.line}"
        if block.excuse or block.language not in RUN:
            continue
        if block.language == "python":
            exec(compile(block.text, where, "exec"), names)
        else:
            for command in block.commands():
                run_command(command, where)


def make_light_work(monkeypatch):
    """That commands run is the point, not how good the models are: fewer features by default, one kernel to try, with
    few features."""
    monkeypatch.setattr(pilot, "KERNELS", ("gaussian",))
    monkeypatch.setattr(pilot, "SMALL_D", 20)
    monkeypatch.setattr(pilot, "PILOT_D", 40)
    monkeypatch.setattr("streamrf.features.settings.DEFAULT_D", 60)


def run_command(command, where):
    wanted = int(match[1]) if (match := re.search(r"# exits with (\d+)$", command)) else 0
    make_what_is_missing(command)
    plain = command.split(" # ")[0].strip()
    if plain.startswith("streamrf ") and not SHELL_MARKS.search(plain):
        answer = streamrf(*shlex.split(plain)[1:])
        code, said = answer.code, answer.out + answer.err
    else:
        done = subprocess.run(["bash", "-ec", plain], capture_output=True, text=True, timeout=120, check=False)
        code, said = done.returncode, done.stdout + done.stderr
    assert code == wanted, f"{where}: {command}\n{said}"


# -- the reference of the command line


def load_script(name):
    loader = importlib.machinery.SourceFileLoader(name, str(PROJECT / "scripts" / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def test_the_reference_is_up_to_date():
    made = load_script("make_cli_reference").reference()
    assert (PROJECT / "docs" / "cli.md").read_text(encoding="utf-8") == made, "run scripts/make_cli_reference"


def every_command():
    context = click.Context(cli, info_name="streamrf")
    return {name: cli.get_command(context, name) for name in cli.list_commands(context)}


@pytest.mark.parametrize("name", every_command())
def test_every_command_and_option_is_explained(name):
    text = (PROJECT / "docs" / "cli.md").read_text(encoding="utf-8")
    section = text.split(f"## streamrf {name}\n")[1].split("\n## ")[0]
    command = every_command()[name]
    assert command.help
    for option in command.params:
        if isinstance(option, click.Option):
            assert f"| `{option.opts[0]}`" in section
            assert option.help, f"streamrf {name} {option.opts[0]} has no help"


def test_every_exit_code_is_listed():
    listed = load_script("make_cli_reference").exit_codes()
    codes = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type)} - {1}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", listed, re.MULTILINE)} == codes | {0, 130}


# -- tables that repeat what the code says


def table_after(page, heading):
    """Rows of the first table after a heading, as lists of cells without code quotes."""
    text = (PROJECT / "docs" / page).read_text(encoding="utf-8").split(heading)[1]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    table = lines[2 : next((i for i, line in enumerate(text[text.index("|") :].splitlines()) if not line), len(lines))]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in table]


def test_defaults_without_a_pilot_are_those_documented():
    documented = dict(table_after("pilot.md", "## Without a pilot"))
    assert documented["scaling"] == defaults.DEFAULTS["scaling"]
    assert documented["kernel"] == defaults.DEFAULTS["kernel"]
    assert documented["bits"] == defaults.DEFAULTS["bits"]
    assert documented["lambda"].startswith(f"starts at {defaults.DEFAULTS['ridge']}")


def test_every_kind_of_frequencies_is_documented():
    documented = dict(table_after("choosing-a-map.md", "## Frequencies"))
    assert {kind: documented.get(kind) for kind in KINDS} == {kind: kind_of(kind).summary for kind in KINDS}
    help_text = " ".join(streamrf("train", "--help").out.split()).replace("- ", "-")  # lines are broken at hyphens
    assert all(kind in help_text for kind in KINDS)


# -- pages and links


def links(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", text)


@pytest.mark.parametrize("name", [*PAGES, "CHANGELOG.md"])
def test_relative_links_lead_somewhere(name):
    page = PROJECT / name
    for link in links(page):
        target, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        there = (page.parent / target).resolve() if target else page
        assert there.exists(), f"{name} links to {link}"
        if anchor:
            assert anchor in anchors(there), f"{name} links to {link}"


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_can_be_reached_from_the_index():
    index = (PROJECT / "docs" / "index.md").resolve()
    reached, waiting = {index}, [index]
    while waiting:
        page = waiting.pop()
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page) if "://" not in link}
        found = {target for target in targets if target.suffix == ".md"} - reached
        reached |= found
        waiting += found
    missing = [name for name, page in PAGES.items() if page.resolve() not in reached and name != "README.md"]
    assert not missing, f"no link leads from docs/index.md to {missing}"
    assert "docs/index.md" in links(PROJECT / "README.md")


# -- the README is for one minute

SPECIAL_WORDS = ("d", "feature-map", "grid", "sufficient-statistics", "pilot", "hold-out", "lambda", "shard")


def test_the_readme_is_short():
    assert len((PROJECT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("word", SPECIAL_WORDS)
def test_the_readme_links_special_words_at_their_first_use(word):
    text = re.sub(r"```.*?```", "", (PROJECT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    spelled = r"\bD\b" if word == "d" else rf"\b{word.replace('-', '[- ]')}"
    first = re.search(spelled, text, re.IGNORECASE if word != "d" else 0)
    linked = re.search(rf"\[[^\]]*\]\(docs/glossary\.md#{word}\)", text)
    assert linked, f"README.md does not link to docs/glossary.md#{word}"
    assert linked.start() <= first.start() < linked.end()


def test_nothing_names_the_machine_it_was_written_on():
    for name in [*PAGES, "CHANGELOG.md"]:
        text = (PROJECT / name).read_text(encoding="utf-8")
        assert not re.search(r"/(home|root|Users|work)/|/tmp/", text), name
