"""The KV arena: where a conversation's keys and values live."""
