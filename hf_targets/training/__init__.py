"""The Trainer that those of all targets are, its arguments, averages of weights, and checkpoints."""
