"""Who may do what: what listens where, what is kept out of messages and files, and what reaches a terminal."""

from __future__ import annotations

import ipaddress
import os

import psutil

from streamrf.engines.cluster import Address, connect


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
