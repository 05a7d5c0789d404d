"""What the tools do in a session."""
