"""PRIME-RL: our policy gradient in its trainer, our hints and pairs in its orchestrator, its configuration from our run file.

`composer_loss.loss_fn` is the trainer's rl component, `algorithm` what the orchestrator adds to rollouts, `config` writes the
TOML, `substrate` starts the processes. No module imports PRIME-RL before it is needed, and nothing of it is changed on disk.
"""
