"""Other ways to use a text when a model writes, to compare with: kNN-LM, RETRO, and a larger static vocabulary."""
