"""Calls of systems that Belljar replaces, as their users wrote them."""
