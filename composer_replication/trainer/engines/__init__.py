"""What samples for an arm: its model in this process, or a server that is given its weights."""
