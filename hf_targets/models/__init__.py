"""PreTrainedModel classes, one folder a target."""
