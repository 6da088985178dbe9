"""Peak GPU memory as a closed form, term by term, and what finished runs taught of it."""
