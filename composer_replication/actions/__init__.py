"""Actions of agents: tool calls, shell lines, patches, their effects, and whether two actions are the same."""
