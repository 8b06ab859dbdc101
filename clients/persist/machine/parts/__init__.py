"""Parts between Blob and rows: fetching ahead, decoding, merging, in bounded memory."""
