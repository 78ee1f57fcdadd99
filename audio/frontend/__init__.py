"""Feature matrices for models; `spec` holds the tables that CPU and GPU twins share."""
