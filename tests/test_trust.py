"""Who may do what: what listens where, what is kept out of messages and files, and what reaches a terminal."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
from pathlib import Path

import pandas as pd
import psutil
import pytest
from commands import FAST, streamrf
from tables import smooth, write_zarr

from streamrf.cli.connection import Address, connect
from streamrf.cli.display import printable
from streamrf.data.locations import explain
from streamrf.support.errors import InputError
from streamrf.support.redaction import holds_credentials, without_credentials


def listening() -> set[str]:
    """Addresses at which this process and those it started wait for connections."""
    family = [psutil.Process(os.getpid()), *psutil.Process(os.getpid()).children(recursive=True)]
    sockets = [socket for process in family for socket in process.net_connections("tcp")]
    return {socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN}


class TestCluster:
    def test_new_workers_listen_on_the_loopback_interface_only(self) -> None:
        before = listening()
        with connect(Address(workers=1, threads=1)) as client:
            client.wait_for_workers(1)
            opened = listening() - before
            dashboard = client.dashboard_link
        assert opened, "the scheduler listens somewhere"
        assert all(ipaddress.ip_address(each).is_loopback for each in opened), opened
        assert "127.0.0.1" in dashboard


SECRET = "s3cr3t-value"
ADDRESSES = [
    f"https://{SECRET}@host.invalid/t.parquet",
    f"https://user:{SECRET}@host.invalid/t.parquet",
    f"https://host.invalid/t.parquet?auth={SECRET}",
    f"https://host.invalid/t.parquet?page=1&code={SECRET}",
    f"https://host.invalid/t.parquet?X-Amz-Signature={SECRET}&a=b",
    f"https://host.invalid/t.parquet?access_token={SECRET}",
    f"s3://key:{SECRET}@bucket/t.zarr",
]


class TestCredentials:
    @pytest.mark.parametrize("url", ADDRESSES)
    @pytest.mark.parametrize("command", ["train", "inspect", "plan"])
    def test_data_addresses_are_refused_without_saying_them(self, url: str, command: str) -> None:
        answer = streamrf(command, url)
        assert answer.code == InputError.exit_code
        assert "credential" in answer.sentence
        assert SECRET not in answer.err + answer.out

    @pytest.mark.parametrize("url", ADDRESSES)
    def test_they_are_taken_out_of_any_text(self, url: str) -> None:
        told = without_credentials(f"GET {url} failed, and '{url}' too")
        assert SECRET not in told
        assert "failed, and '" in told
        assert "/t." in told

    @pytest.mark.parametrize(
        "url",
        [
            "s3://bucket/t.zarr", "https://host/t.parquet?page=2&zipcode=8000", "abfs://container@account/t.zarr",
            "sftp://user@host/t.parquet", "https://host/a@b.parquet",
        ],
    )  # fmt: skip
    def test_other_addresses_are_not_refused(self, url: str) -> None:
        assert not holds_credentials(url)

    @pytest.mark.parametrize("url", ADDRESSES[:4])
    def test_places_of_outputs_and_checkpoints(self, tmp_path: Path, url: str) -> None:
        data = write_zarr(tmp_path / "t.zarr", *smooth(100))
        for option in ("--out", "--checkpoint"):
            out = () if option == "--out" else ("--out", tmp_path / "a.model")
            answer = streamrf("train", data, *FAST, "--quiet", *out, option, url)
            assert answer.code, answer.out
            assert SECRET not in answer.err + answer.out

    def test_errors_of_libraries(self) -> None:
        error = OSError(f"404 for https://{SECRET}@host/a and https://host/b?auth={SECRET}")
        assert SECRET not in str(explain(error, "the data"))


NASTY = "a\x1b[2J\x1b]0;owned\x07\u202eb"


class TestTerminal:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        X, y = smooth(200, 3)
        frame = pd.DataFrame(X, columns=[NASTY, "plain", f"{NASTY}2"]).assign(y=y)
        frame.to_parquet(tmp_path / "t.parquet")
        return tmp_path / "t.parquet"

    def test_names_of_columns_are_escaped_everywhere(self, table: Path, tmp_path: Path) -> None:
        model = tmp_path / "a.model"
        said = [
            streamrf("train", table, *FAST, "--out", model),
            streamrf("inspect", table),
            streamrf("inspect", model),
            streamrf("train", table, *FAST, "--target", NASTY + "?", "--out", tmp_path / "b.model"),
            streamrf("train", table, *FAST, "--exclude", NASTY + "?", "--out", tmp_path / "b.model"),
            streamrf("evaluate", model, table),
        ]
        text = "".join(answer.out + answer.err for answer in said)
        assert r"a\x1b[2J\x1b]0;owned\x07\u202eb" in text
        assert not any(mark in text for mark in "\x1b\x07\u202e")

    def test_json_is_ascii(self, table: Path) -> None:
        answer = streamrf("inspect", table, "--json")
        assert answer.out.isascii()
        assert answer.json["feature_names"][0] == NASTY

    def test_a_forged_second_line(self) -> None:
        assert printable("column 'a\nstreamrf: all is well'", lines=False) == r"column 'a\nstreamrf: all is well'"
        assert printable("two\nlines\tä€") == "two\nlines\tä€"


class TestLastResort:
    def test_one_line_and_a_log(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(*args: object, **options: object) -> None:
            raise ZeroDivisionError(f"deep\nwithin https://{SECRET}@host")

        data = write_zarr(tmp_path / "t.zarr", *smooth(100))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr("streamrf.training.run.Training.run", fails)
        answer = streamrf("train", data, *FAST, "--quiet")
        assert answer.code == 1
        place = re.search(r"unexpected ZeroDivisionError: deep; please report it, with the log (\S+)", answer.sentence)
        assert place
        log = Path(place[1])
        assert "Traceback" in log.read_text()
        assert "in fails" in log.read_text()
        assert SECRET not in log.read_text()
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
