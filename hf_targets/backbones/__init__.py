"""What every wrapped Transformers model needs: wrapping, checks, checkpoints, and access to weights where they are."""
