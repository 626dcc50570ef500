"""CRDT types: pure values over cells. Standard library only; see README.md beside this file."""
