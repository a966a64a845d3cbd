"""``python -m recall_cli`` is the ``recall`` command."""

import sys

from recall_cli.app import main

if __name__ == "__main__":
    sys.exit(main())
