"""`python -m offbeat.cli`."""

from offbeat.cli import main

main()
