"""Echo: how late the loudspeaker comes back into the microphone, and how to take it out."""
