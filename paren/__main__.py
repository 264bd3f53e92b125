"""`paren` and `python -m paren`."""

import sys


def main() -> int:
    """Runs the command line; Ctrl-C ends it with 130, even while it is being loaded."""
    try:
        from paren.cli.app import main as run  # loading takes a tenth of a second, in which Ctrl-C may come

        return run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
