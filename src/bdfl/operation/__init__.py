"""Running a federation: keys, founding a chain, nodes, access points, and looking after them."""
