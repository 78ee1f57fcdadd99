"""Language models on the KV arena: configuration, weights, tokenizer, decoder, sampler."""
