"""Things people read and do: the state of names, their history, and the acts of operators."""
