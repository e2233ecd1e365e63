"""Readable numpy spellings of every kernel, equal to the compiled ones bit for bit."""
