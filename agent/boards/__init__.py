"""What a board means: definitions, entries, ties, standings. Pure functions of cells and time."""
