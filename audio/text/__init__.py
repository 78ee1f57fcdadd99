"""Text for speaking: clauses out of a stream, and decoration out of clauses."""
