"""A node's ranks of a script of the user's own: started, watched and judged from outside, without torch."""
