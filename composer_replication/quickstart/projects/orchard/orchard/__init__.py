"""Fruit growing in whole numbers: see `docs/handbook.md` for the words of the house."""
