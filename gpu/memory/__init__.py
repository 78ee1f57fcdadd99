"""GPU memory that is planned before anything loads, capped, watched, and given back step by step under pressure."""
