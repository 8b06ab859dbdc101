"""``python -c`` as a fork does it: the first word is the program, and the others are its own. See ``forked``."""

import sys

if __name__ == "__main__":
    source = sys.argv.pop(1)
    exec(compile(source, "<program>", "exec"), {"__name__": "__main__"})
