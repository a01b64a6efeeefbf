"""Any causal language model, taught to read and generate phrases that are chosen when it is called."""
