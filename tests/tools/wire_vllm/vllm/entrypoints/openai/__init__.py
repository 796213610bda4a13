"""What stands where vLLM is installed."""
