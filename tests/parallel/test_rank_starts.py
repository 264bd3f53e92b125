"""Before all ranks have joined: stops, launchers that are gone, ranks that torchrun starts anew; and how they end."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rank_processes import free_port
from rank_runs import HOST, LIMIT, TWO, finish, last_line, node, ranks_of, start, start_torchrun, write_experiment

import paren
from paren.parallel import launch
from paren.parallel import meet as meeting
from paren.parallel import store as store_of_run
from paren.parallel.meet import Stopped, meet
from paren.parallel.sign import NEVER, OVER, PREPARING, Sign, read_stopped, tell_stopped
from paren.parallel.store import open_store, reach_store
from paren.parallel.topology import Address, Patience, Topology
from paren.run import shared_program
from paren.text.errors import ParenError


def node_of(nodes: int, node: int, port: int) -> Topology:
    return Topology(nodes, node, (0,), Address("127.0.0.1", port), Patience(join=LIMIT), "f32", None)


def test_a_launcher_that_is_killed_at_once_leaves_no_rank(tmp_path: Path) -> None:
    process = start(write_experiment(tmp_path), tmp_path / "out", variables=TWO)
    end = time.monotonic() + LIMIT
    while len(ranks := ranks_of(process)) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    while left := [each for each in ranks.values() if Path(f"/proc/{each}").exists()]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_a_node_that_waits_for_node_0_hears_of_a_stop() -> None:
    with pytest.raises(Stopped) as caught:
        meet(node_of(2, 1, free_port()), lambda: signal.SIGTERM)
    assert caught.value.code == 143


def test_what_listens_there_may_be_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a store of something else. Neither keeps a node waiting for ever."""
    monkeypatch.setattr(store_of_run, "LATER", 0.5)
    impatient = Patience(join=1.0)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        silent = listener.getsockname()[1]
        with pytest.raises(ParenError) as caught:
            meet(replace(node_of(2, 1, silent), patience=impatient), lambda: None)
    assert caught.value.message.endswith(f" did not reach node 0 at 127.0.0.1:{silent} within 1 s")
    assert caught.value.notes[0].message == f"what listens at 127.0.0.1:{silent} does not answer as a store does"
    other = open_store(Address("127.0.0.1", 0), 2, True, LIMIT)
    with pytest.raises(ParenError) as caught:
        meet(replace(node_of(2, 1, other.port), patience=Patience(join=5.0)), lambda: None)
    assert caught.value.notes[0].message == "the store that is there is of something else"


def test_a_stop_that_comes_to_one_node_is_heard_by_all_that_wait_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    port, ends, arrived = free_port(), dict[int, int](), list[int]()
    wait_for_nodes = meeting._wait_for_nodes

    def wait_here(topology: Topology, *given: Any) -> None:
        arrived.append(topology.node)
        wait_for_nodes(topology, *given)

    monkeypatch.setattr(meeting, "_wait_for_nodes", wait_here)
    monkeypatch.setattr(meeting, "HEARING", LIMIT)

    def wait(node: int) -> None:
        received = (lambda: signal.SIGINT if len(arrived) == 3 else None) if node == 2 else lambda: None
        try:
            meet(node_of(4, node, port), received)
        except Stopped as stopped:
            ends[node] = stopped.code

    threads = [threading.Thread(target=wait, args=(node,)) for node in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert ends == {0: 130, 1: 130, 2: 130}


def test_ranks_that_are_started_anew_read_nothing_of_the_attempt_before() -> None:
    """torchrun keeps the store."""
    served = open_store(Address("127.0.0.1", 0), 2, True, LIMIT)
    address = Address("127.0.0.1", served.port)
    first, second, same = (reach_store(address, 2, LIMIT, lambda: None, attempt) for attempt in (0, 1, 1))
    first.compare_set("failure", "", "of the first attempt")
    assert not second.check(["failure"])
    second.compare_set("failure", "", "of the second")
    assert (same.get("failure"), first.get("failure")) == (b"of the second", b"of the first attempt")


def test_how_a_rank_may_end() -> None:
    """Not by a plain exit in the middle, whatever its code; by a stop signal only if that is known, or came before the
    rank could tell of anything."""
    store = open_store(Address("127.0.0.1", 0), 1, True, LIMIT)
    rank = launch._Rank(0, subprocess.Popen(["true"]), io.BytesIO())
    assert [launch._may_end(store, rank, code) for code in (0, 1, -9)] == [False, False, False]
    assert read_stopped(store) is None
    Sign(3, None, 2, False, PREPARING).tell(store, 0)
    assert [launch._may_end(store, rank, code) for code in (0, 143, -15)] == [False, False, False]
    tell_stopped(store, 143)
    assert [launch._may_end(store, rank, code) for code in (0, 143, -15, -9)] == [False, True, True, False]
    Sign(4, 8, 9, False, OVER).tell(store, 0)
    assert [launch._may_end(store, rank, code) for code in (0, 130, 1, -9)] == [True, True, False, False]
    assert NEVER.phase != OVER
    silent = launch._Rank(1, rank.process, io.BytesIO())
    for code, told in ((-15, 143), (130, 130)):
        assert launch._may_end(store, silent, code)
        assert read_stopped(store) == told
    rank.process.wait()


def test_a_stop_of_a_rank_that_is_loading_still_stops_all(tmp_path: Path) -> None:
    variables = {"FAULT": "sleep@1:load", **TWO}
    process = start(write_experiment(tmp_path), tmp_path / "out", variables=variables)
    end = time.monotonic() + LIMIT
    while len(ranks := ranks_of(process)) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    os.kill(ranks[1], signal.SIGTERM)
    code, said = finish(process)
    assert (code, last_line(said)) == (143, "stopped, as a rank or another node was asked to")
    assert not [each for each in ranks.values() if Path(f"/proc/{each}").exists()]


def test_torchrun_shows_a_mistake_that_is_found_before_ranks_join(tmp_path: Path) -> None:
    file = write_experiment(tmp_path)
    file.write_text(file.read_text().replace("(tanh ", "(tnah "))
    code, said = finish(start_torchrun(2, file, tmp_path / "out"))
    assert code == 1
    named = f"E-NAME-001: unknown name tnah (did you mean tanh?) ({file}:13:21)"
    assert re.search(rf"Root Cause(.*\n)*.* : {re.escape(named)}\n", said) is not None, said


def test_reproducible_runs_exchange_exactly_whatever_is_usual(tmp_path: Path) -> None:
    """Between nodes of cards gradients are rounded where nothing is said."""
    file = write_experiment(tmp_path)
    topology = Topology(2, 0, (0,), None, Patience(), "bf16", None)
    assert shared_program(paren.load(file).program, topology).rounds
    file.write_text(file.read_text().replace("(defrun\n", "(defrun\n  :reproducible-over 4\n"))
    assert not shared_program(paren.load(file).program, topology).rounds


def test_no_node_ends_well_before_all_is_written(tmp_path: Path) -> None:
    """The last checkpoint fails when the other node has had nothing to do for long."""
    file, port = write_experiment(tmp_path), free_port()
    variables = [node(index, port, FAULT="raise@0:write sleep3@0:write") for index in range(2)]  # it sleeps first
    started = [start(file, tmp_path / "out", "--set", "epochs=1", variables=each) for each in variables]
    last = f"E-DP-008: rank 0 on {HOST} failed after step 2 (saving): ValueError: provoked by a test"
    assert [(code, last_line(said)) for code, said in map(finish, started)] == [(1, last), (1, last)]
