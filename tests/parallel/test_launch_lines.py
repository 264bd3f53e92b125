"""The launch lines of docs/ranks.md, run as they stand there: two nodes on the loopback, by hand, under Slurm, under
SkyPilot and under torchrun. Slurm's commands are stood in for by scripts that do what is asked of them there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rank_processes import free_port
from rank_runs import CACHE, LIMIT, series, train, write_experiment

PAGE = (Path(__file__).parents[2] / "docs" / "ranks.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1"

COMMANDS = {
    "paren": f'#!/bin/sh\nexec "{sys.executable}" -m paren "$@" --threads 1\n',
    "torchrun": f'#!/bin/sh\nexec "{sys.executable}" -m torch.distributed.run "$@" --threads 1\n',
    "scontrol": f'#!/bin/sh\n[ "$1 $2" = "show hostnames" ] && printf "{ADDRESS}\\n{ADDRESS}\\n"\n',
    "srun": '#!/bin/sh\n(cd "$NODE_1" && SLURM_NODEID=1 "$@") & (cd "$NODE_0" && SLURM_NODEID=0 "$@"); first=$?\n'
    "wait $!; second=$?; exit $((first + second))\n",
}


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Path, Path]:
    """The working folders of two nodes, with the experiment's file in each."""
    folders = tmp_path / "node 0", tmp_path / "node 1"
    for folder in folders:
        folder.mkdir()
        write_experiment(folder).rename(folder / "train.paren")
    (tmp_path / "bin").mkdir()
    for name, text in COMMANDS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return folders


def block(word: str) -> str:
    """The only block of the page with a word in it."""
    (found,) = [text for text in BLOCKS if word in text]
    return found


def start(lines: str, folder: Path, **variables: str) -> subprocess.Popen[str]:
    """Runs lines in a node's folder, where the page's names of hosts and ports are the test's."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("PAREN_")}
    given["PATH"] = f"{folder.parent / 'bin'}:{given['PATH']}"
    given["PAREN_CACHE"] = CACHE.name
    command = ["bash", "-e", "-c", lines]
    return subprocess.Popen(command, cwd=folder, env=given | variables, stderr=subprocess.PIPE, text=True)


def check(nodes: tuple[Path, Path], processes: list[subprocess.Popen[str]]) -> None:
    """All end well, and the run is what one process trains."""
    try:
        said = [process.communicate(timeout=LIMIT)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), said
    alone = series(train(nodes[0] / "train.paren", nodes[0].parent / "alone"))
    found = series(nodes[0] / "outputs" / "train")
    assert alone.keys() <= found.keys()
    np.testing.assert_allclose(found["loss"], alone["loss"], rtol=1e-5)
    assert not (nodes[1] / "outputs" / "train" / "metrics.jsonl").exists()


def test_by_hand(nodes: tuple[Path, Path]) -> None:
    lines = block("PAREN_NODE_RANK=0").replace("node-0:29500", f"{ADDRESS}:{free_port()}")
    second = lines.replace("PAREN_NODE_RANK=0", "PAREN_NODE_RANK=1")
    check(nodes, [start(lines, nodes[0]), start(second, nodes[1])])


def test_under_slurm(nodes: tuple[Path, Path]) -> None:
    lines = block("SLURM").replace("29500", str(free_port()))
    where = {"NODE_0": str(nodes[0]), "NODE_1": str(nodes[1])}
    check(nodes, [start(lines, nodes[0], SLURM_NNODES="2", SLURM_NODELIST="node-[0-1]", **where)])


def test_under_skypilot(nodes: tuple[Path, Path]) -> None:
    lines = block("SKYPILOT").replace("29500", str(free_port()))
    known = {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": f"{ADDRESS}\n{ADDRESS}"}
    check(nodes, [start(lines, folder, SKYPILOT_NODE_RANK=str(n), **known) for n, folder in enumerate(nodes)])


def test_under_torchrun(nodes: tuple[Path, Path]) -> None:
    (line,) = re.findall(r"`(torchrun --nnodes 2 [^`]*)`", PAGE)
    line = line.replace("\n", " ").replace("node-0", f"{ADDRESS} --master-port {free_port()}")
    line = line.replace("--nproc-per-node 8", "--nproc-per-node 1")
    second = line.replace("--node-rank 0", "--node-rank 1")
    check(nodes, [start(line, nodes[0]), start(second, nodes[1])])
