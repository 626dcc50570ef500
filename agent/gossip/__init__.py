"""Gossip: the thin rim around agent/exchange.py. Messages, their proof, and when to exchange."""
