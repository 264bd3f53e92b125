"""`python -m paren`, the same as `paren`."""

import sys

from paren.cli.app import main

sys.exit(main())
