"""Indexes of packages, as sources of projects."""
