"""New environments installed as the pages say: every command, every page and the quick start in them."""
