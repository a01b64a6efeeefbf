"""Any causal language model, taught to predict the words after the next one as well."""
