"""Where cells are kept: one SQLite file, one writer, readers on snapshots."""
