"""The timeline's pen: instant times, locks, markers, heartbeats, and the one line after which a write is true."""
