"""Which functions to delete, and which tests the agent sees."""
