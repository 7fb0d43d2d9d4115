"""`python -m gradviz`."""

import sys

if not sys.flags.safe_path:
    # not this directory: a script there may have a `rich.py` of its own, which is not for us
    sys.path[0] = "<gradviz>"

from gradviz.cli.command_process import run

run()
