"""The controller: whoever leads an environment keeps its collections readable, complete and no longer than needed."""
