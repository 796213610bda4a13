"""The default that needs no GPU, no key and no download: a tiny policy, small projects with tests, local teachers."""
