"""`python -m offbeat.cli`."""

import os
import sys

if not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:  # noqa: PTH109 - imports nothing
    # Python puts the current directory first: what lies there must not be taken for a library.
    del sys.path[0]

from offbeat.cli import main

main()
