"""Any causal language model, taught to predict the tokens after the next one as well."""
