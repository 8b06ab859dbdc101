"""Fresh processes that do one measured thing and print one line of JSON."""
