"""Grade a workspace: submission, tests, held-out calls and anti-tests."""
