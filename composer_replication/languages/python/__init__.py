"""Find, describe, remove, mutate and call functions in Python source."""
