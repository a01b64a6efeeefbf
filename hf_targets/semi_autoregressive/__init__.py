"""A Transformer with an LSTM that predicts the next N words at once, one by one or as a sentence curve."""
