"""Sandboxes on another machine: our client, its server, and the agent that runs there."""
