"""What people and their tools ask: the listener, the control socket, and what they see."""
