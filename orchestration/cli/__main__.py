"""`python -m orchestration.cli`: the command line of the code in the working directory."""

from orchestration.cli import main

main()
