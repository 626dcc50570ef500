"""Many agents: start them, operate the ring, simulate it, break it, and check what it counted.

This is the top layer. It may import from `agent`; nothing in `agent` imports from here.
"""
