"""Which network interface ranks listen on: the one that leads to the other nodes, whatever this machine is called."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from rank_runs import HOST, TWO, finish, parameters, start, start_within, train

from paren.parallel import join
from paren.parallel.group import PeerLost
from paren.parallel.interface import interface_of
from paren.text.errors import ParenError


def test_an_interface_is_found_by_its_address() -> None:
    assert interface_of("127.0.0.1") in ("lo", "lo0")
    assert interface_of("203.0.113.77") is None
    assert interface_of("2001:db8::77") is None


def test_an_interface_that_is_not_there(file: Path, tmp_path: Path) -> None:
    variables = {"GLOO_SOCKET_IFNAME": "eth77", **TWO}
    code, said = finish(start(file, tmp_path / "out", variables=variables))
    names = ", ".join(name for _, name in socket.if_nameindex())
    assert code == 1
    assert (
        f"E-DP-007: GLOO_SOCKET_IFNAME names eth77, which is no interface of {HOST}\n"
        f"  fix: name one of {names}, or leave the variable out\n"
    ) in said


def test_ranks_that_do_not_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(*_: object) -> None:
        raise PeerLost("connectFullMesh failed")

    monkeypatch.setattr(join, "Groups", groups)
    monkeypatch.setattr(join, "GRACE", 0.0)
    monkeypatch.setattr(join, "choose_interface", lambda *_: "lo, 127.0.0.1")
    member, heart = SimpleNamespace(rank=1, meeting=None), SimpleNamespace(meeting=nullcontext)
    with pytest.raises(ParenError) as caught:
        join._make_groups(None, member, None, heart)  # type: ignore[arg-type]
    assert caught.value.code == "E-DP-007"
    assert caught.value.message == f"rank 1 on {HOST} and the others did not reach each other"
    assert [note.message for note in caught.value.notes] == [
        "it listened on interface lo, 127.0.0.1",
        "Gloo said: connectFullMesh failed",
    ]
    assert caught.value.fix == (
        "let the nodes reach each other at every port, or name the interface between them in GLOO_SOCKET_IFNAME"
    )


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    """Two network namespaces with a cable between them: what starts a command in each."""
    tool = shutil.which("ip", path=f"{os.environ['PATH']}{os.pathsep}/usr/sbin{os.pathsep}/sbin")
    names = [f"paren-{os.getpid()}-{index}" for index in range(2)]

    def ip(*words: str) -> bool:
        return tool is not None and subprocess.run([tool, *words], capture_output=True, check=False).returncode == 0

    try:
        if not all(ip("netns", "add", name) for name in names):
            pytest.skip("network namespaces cannot be made here")
        assert ip("link", "add", "one", "netns", names[0], "type", "veth", "peer", "name", "two", "netns", names[1])
        for index, (name, cable) in enumerate(zip(names, ("one", "two"), strict=True), 1):
            assert ip("-n", name, "addr", "add", f"10.77.0.{index}/24", "dev", cable)
            for each in ("lo", cable):
                assert ip("-n", name, "link", "set", each, "up")
        yield [[str(tool), "netns", "exec", name] for name in names]
    finally:
        for name in names:
            ip("netns", "delete", name)


def test_nodes_whose_names_lead_to_their_own_loopback_interface(
    file: Path, tmp_path: Path, hosts: list[list[str]]
) -> None:
    """Two machines of the same name, as it is of many containers, train what one node does, bit for bit. Each has its
    own output folder."""
    variables = [
        {
            "PAREN_NODES": "2",
            "PAREN_NODE_RANK": str(index),
            "PAREN_RENDEZVOUS": "10.77.0.1:29500",
            "PAREN_NODE_GRADIENTS": "f32",
        }
        for index in range(2)
    ]
    outs = [tmp_path / f"node {index}" for index in range(2)]
    started = [
        start_within(host, file, out, "--steps", "4", variables=each)
        for out, each, host in zip(outs, variables, hosts, strict=True)
    ]
    for code, said in map(finish, started):
        assert code == 0, said
    alone = train(file, tmp_path / "alone", "--steps", "4", variables=TWO)
    assert parameters(outs[0]) == parameters(alone)
