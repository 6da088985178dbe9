"""``python -m frenzy.cli``: the command ``frenzy`` where no script of that name is installed."""

from __future__ import annotations

from frenzy.cli.main import app

if __name__ == "__main__":
    app()
