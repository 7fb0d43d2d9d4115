"""`python -m gradviz`."""

import sys

if not sys.flags.safe_path:
    sys.path[0] = (
        "<gradviz>"  # not this directory: a script there may have a `rich.py` of its own, which is not for us
    )

from gradviz.cli.command_process import run

run()
