"""The ``persist`` command: run services, look into shards, put rows in and get them out, find out what is wrong."""
