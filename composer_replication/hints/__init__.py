"""Placeholder docstring: to be replaced by the owner of this room."""
