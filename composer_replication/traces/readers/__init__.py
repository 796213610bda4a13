"""Readers of other agents' logs, one file a format."""
