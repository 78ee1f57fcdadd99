"""Speech recognition: engines, the proof of their files, and live transcripts."""
