"""`paren` in a process that was forked, and so has loaded no sitecustomize.py when it started."""

import runpy
import sys
from pathlib import Path

from paren.__main__ import main

runpy.run_path(str(Path(__file__).with_name("sitecustomize.py")))
sys.exit(main())
