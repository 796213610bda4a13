"""Try to break out of a sandbox and report what was blocked."""
