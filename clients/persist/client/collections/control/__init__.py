"""The controller: the leader of an environment keeps its collections readable, complete and no longer than needed."""
