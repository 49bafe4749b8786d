"""``python -m bench.systems NAME TASK``: one turn of one client, for the figures."""

import sys

from bench.systems.run import main

if __name__ == "__main__":
    main(*sys.argv[1:])
