"""The wheel and the source archive: that they build, what is in them, and what they say of themselves."""

import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string

import pytest
from commands import PROJECT

import streamrf

EXTRAS = {"mkl", "s3", "report", "onnx", "all"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if not all(map(importlib.util.find_spec, ("build", "hatchling"))):
        pytest.skip("build and hatchling are not installed: pip install 'streamrf[test]'")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(PROJECT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode())


def test_the_wheel_is_plain_python_and_whole(built):
    wheel, _ = built
    assert wheel.name == f"streamrf-{streamrf.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    ours = {str(path.relative_to(PROJECT)) for path in (PROJECT / "streamrf").rglob("*.py")}
    assert ours <= inside
    assert "streamrf/py.typed" in inside
    assert not any(name.startswith(("tests/", "docs/")) for name in inside)
    assert not any(name.endswith((".so", ".pyd", ".dll", ".pyc")) for name in inside)


def test_the_source_archive_can_test_itself(built):
    _, source = built
    with tarfile.open(source) as archive:
        inside = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"pyproject.toml", "README.md", "LICENSE", "mkdocs.yml", "scripts/test", "tests/test_packaging.py"} <= inside
    assert "docs/quickstart.md" in inside


def test_it_says_what_it_needs(built):
    found = metadata(built[0])
    assert found["Version"] == streamrf.__version__
    assert found["Requires-Python"] == ">=3.11"
    for version in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {version}" in found.get_all("Classifier")
    assert set(found.get_all("Provides-Extra")) >= EXTRAS
    assert found["License-Expression"] == "MIT"


def test_it_runs_from_the_wheel(built, tmp_path):
    """In a folder where the project is not: names, version and help come from the archive alone."""
    code = "import streamrf.cli; streamrf.cli.main(['--version'])"
    done = subprocess.run([sys.executable, "-c", f"import sys; sys.path.insert(0, {str(built[0])!r}); {code}"],
                          capture_output=True, text=True, check=True, cwd=tmp_path)  # fmt: skip
    assert done.stdout.split()[-1] == streamrf.__version__
