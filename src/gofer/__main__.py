"""`python -m gofer`: the same as the command `gofer`."""

import sys

from gofer._cli import main

if __name__ == "__main__":
    sys.exit(main())
