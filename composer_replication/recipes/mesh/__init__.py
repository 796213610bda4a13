"""Asynchronous training on actors: generators, environments, a grader, teachers and a trainer, each in its own process."""
