"""Traces that a stranger may hand over: damaged, or made to harm. `subjects` are sound ones, `mutations` damage them,
`trial` reads them with every command and tells what should not have happened."""
