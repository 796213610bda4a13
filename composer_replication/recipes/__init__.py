"""Adapters that carry tensors to other trainers, and recipes as data. They hold no mathematics."""
