"""What agents do: tool calls, shell lines, patches, their effects, and when two actions are the same."""
