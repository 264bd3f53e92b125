"""`python -m bench.peers install [torch] [jax]`: makes the environments of the peers under `.venv-peers/`.

pip's default torch on Linux is built for CUDA. With `--torch-index https://download.pytorch.org/whl/cpu` it takes the
much smaller CPU build, which computes the same here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv

from bench.contestants import PEERS

PACKAGES = {
    "torch": ["torch==2.13.0", "numpy"],
    "jax": ["jax==0.10.2", "jaxlib==0.10.2", "numpy"],
}


def install(peer: str, index: str | None) -> None:
    """Makes the environment of a peer, or brings it up to date."""
    folder = PEERS / peer
    venv.create(folder, with_pip=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if peer == "torch" and index:
        command += ["--extra-index-url", index]
    subprocess.run([*command, *PACKAGES[peer]], check=True)
    print(f"{peer}: {folder}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["install"])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(PACKAGES)}; default: all")
    parser.add_argument("--torch-index", help="where pip finds torch too: the CPU build is a tenth of the one for CUDA")
    given = parser.parse_args()
    for peer in given.peers or PACKAGES:
        if peer not in PACKAGES:
            parser.error(f"no peer {peer}: there is {', '.join(PACKAGES)}")
        install(peer, given.torch_index)


if __name__ == "__main__":
    main()
