"""Files that people sign: keys, member cards, the genesis, changes of membership."""
