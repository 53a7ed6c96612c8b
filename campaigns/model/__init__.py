"""A formal model of the agreement, checked by Spin, and recorded networks checked against it."""
