"""Code that all wrapped Transformers models share: wrapping, checks, checkpoints, offloaded and sharded weights."""
