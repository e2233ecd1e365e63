"""The `duologue` command."""
