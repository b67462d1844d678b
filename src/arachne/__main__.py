"""`python -m arachne`, also under torchrun."""

import sys

from arachne.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
