"""``python -m recall_cli`` is the ``recall`` command."""

from recall_cli.app import script

if __name__ == "__main__":
    script()
