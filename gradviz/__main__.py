"""`python -m gradviz`."""

from gradviz.cli.main import main

main(prog_name="gradviz")
