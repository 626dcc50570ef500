"""Certifying: closed windows get their finals, one loop an agent."""
