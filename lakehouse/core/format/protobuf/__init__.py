"""The wire format of Protocol Buffers, decoded into Arrow."""
