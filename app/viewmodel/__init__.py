"""What panels show, in plain Python: fed by events, read by widgets, tested without a screen."""
