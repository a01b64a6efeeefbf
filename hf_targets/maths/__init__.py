"""The equations of the papers as functions of tensors, without models."""
