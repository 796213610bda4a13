"""Asynchronous training on actors: generators, environments, a grader, teachers and a trainer, each in a process of its own."""
