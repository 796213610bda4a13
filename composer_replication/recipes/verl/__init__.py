"""verl 0.9 on Ray: its trainer, rollout servers and data path, with our three channels in its FSDP engine.

`substrate.train` has the shape of `trainer.report.train`. verl's processes load `plugin` by themselves (entry point group
`verl.plugins`) and find out what to do from the run's `plan`.
"""
