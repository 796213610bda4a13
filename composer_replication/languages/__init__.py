"""The framework's knowledge of programming languages, one package each."""
