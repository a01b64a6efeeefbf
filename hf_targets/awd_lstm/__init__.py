"""AWD-LSTM: a language model of LSTM layers with dropped recurrent weights."""
