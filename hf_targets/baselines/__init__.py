"""What phrases are compared with: a larger static vocabulary."""
