"""Rolling out: engines that sample turns, the multi-turn loop, and the collection of groups.

Importing this package imports no torch; `composer_replication.rollout.transformers_engine` does.
"""
