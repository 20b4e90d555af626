"""What operators read and do: the state of names, their history, and actions."""
