"""`python -m gradviz`."""

from gradviz.cli.process import run

run()
