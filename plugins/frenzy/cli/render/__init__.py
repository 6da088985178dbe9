"""How answers and errors look in a terminal."""
