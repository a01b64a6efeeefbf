"""The Tensorized Transformer: a language model whose attention is a product of three factors, without a softmax."""
