"""What a hop sounds like, in figures: levels now; loudness, SNR and quality later."""
