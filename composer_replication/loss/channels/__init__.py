"""The three channels of the loss, each a value with gradient and its metrics."""
