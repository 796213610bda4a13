"""Grade a workspace: submission, tests, held-out programs and anti-tests."""
