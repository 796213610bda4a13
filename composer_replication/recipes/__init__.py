"""Adapters that carry tensors to other trainers, and recipes as data. No mathematics lives here."""
