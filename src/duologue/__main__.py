"""`python -m duologue` is the `duologue` command."""

from __future__ import annotations

from duologue.cli.main import main

if __name__ == "__main__":
    main()
